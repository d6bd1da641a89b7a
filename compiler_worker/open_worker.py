"""Opens what a compiler process uses: store, devices, progress."""

import sys

from compiler_worker.children.requests import ChildEvent
from compiler_worker.devices import local_devices
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import OnProgress, WorkerContext, ignore_progress
from services.contracts.builds.build_key import BuildKey
from services.contracts.registry.registry import Registry
from services.contracts.security.signing import Signer
from services.contracts.store.object_store import open_store
from services.telemetry.logs import configure_logging


def opened_registry(settings: CompilerSettings) -> Registry:
    """The registry on the settings' store; raises UnsafeStoreError without conditional create."""
    return Registry(open_store(settings.store_url), settings.cache_dir, settings.sample_key)


def opened_signer(settings: CompilerSettings) -> Signer | None:
    """The signer of the settings' key; raises InvalidRequestError when the file is no key."""
    return Signer(settings.signing_key) if settings.signing_key else None


def new_worker(
    registry: Registry, settings: CompilerSettings, on_progress: OnProgress
) -> WorkerContext:
    """A worker with this machine's devices and the settings' key.

    Args:
        registry: on the settings' store.
        settings: name the key's file, and may name the generation.
        on_progress: called for each event of a child, in the building thread.

    Raises:
        InvalidRequestError: the key's file is no key.
    """
    return WorkerContext(
        registry=registry,
        settings=settings,
        devices=local_devices(settings.device_generation),
        signer=opened_signer(settings),
        on_progress=on_progress,
    )


def open_worker(settings: CompilerSettings, *, is_quiet: bool) -> WorkerContext:
    """A worker for one command; a quiet one prints no progress.

    Raises:
        UnsafeStoreError: the store has no conditional create.
        InvalidRequestError: the key's file is no key.
    """
    configure_logging("compiler", settings.log_level)
    progress = ignore_progress if is_quiet else _print_progress
    return new_worker(opened_registry(settings), settings, progress)


def _print_progress(key: BuildKey, event: ChildEvent) -> None:
    what = f"{key.generation} {key.kind} {key.precision}"
    if event.stage:
        detail = f": {event.line}" if event.line else ""
        sys.stderr.write(f"{what}: {event.stage}{detail}\n")
    elif event.line:
        sys.stderr.write(f"{what}:   {event.line}\n")
