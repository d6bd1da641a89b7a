"""A compiler with an empty store that wastes no time on figures."""

from pathlib import Path

from compiler_worker.plans.build_keys import Wanted
from compiler_worker.plans.plan_document import chosen, keep_plans
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.model.manifest import ModelVersion
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


def wanted_keys(version: ModelVersion, wanted: Wanted, worker: WorkerContext) -> list[BuildKey]:
    """What a build of this worker would take up, in order; its plans are kept."""
    plans = chosen(keep_plans(version, wanted, worker), wanted, worker.registry)
    return [planned.key for plan in plans for planned in plan.planned]
