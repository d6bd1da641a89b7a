"""A compiler with an empty store that wastes no time on figures."""

from pathlib import Path

from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store


def quick_settings(folder: Path) -> CompilerSettings:
    """One thread, store and cache below a folder, and as little timing as there can be."""
    return CompilerSettings(
        store_url=str(folder / "store"),
        cache_dir=folder / "cache",
        num_threads=1,
        benchmark_s=0.01,
        benchmark_iterations=3,
    )


def quick_worker(folder: Path) -> WorkerContext:
    """The same settings over their store."""
    settings = quick_settings(folder)
    registry = Registry(open_store(settings.store_url), settings.cache_dir)
    return WorkerContext(registry=registry, settings=settings)
