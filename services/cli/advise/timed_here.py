"""Times here what needs no build, where this host is a device that advice is on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from services.cli.output.progress import Steps
from services.cli.output.show import print_remark
from services.contracts.errors import InvalidRequestError, SmeltError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision

if TYPE_CHECKING:
    from compiler_worker.worker_context import WorkerContext
    from services.cli.settings import CliSettings
    from services.contracts.model.manifest import ModelVersion
    from services.contracts.registry.registry import Registry

TimedHere: TypeAlias = Mapping[tuple[EngineKind, Precision], float]
NOWHERE: Final[Mapping[str, TimedHere]] = {}


def timed_here(
    settings: CliSettings,
    registry: Registry,
    versions: Iterable[ModelVersion],
    generations: Iterable[str],
) -> dict[str, dict[str, TimedHere]]:
    """Seconds of a run, by the master's digest and the generation.

    Args:
        settings: where masters are cached.
        registry: of the store.
        versions: one of each master.
        generations: that advice is on.

    Raises:
        InvalidRequestError: this host is none of them.
    """
    from compiler_worker.open_worker import new_worker
    from compiler_worker.settings import settings_from_environment
    from compiler_worker.worker_context import ignore_progress

    compiler = settings_from_environment(store_url=settings.store_url, cache_dir=settings.cache_dir)
    worker = new_worker(registry, compiler, ignore_progress)
    own = {device.generation for device in worker.devices.values()}
    wanted = list(generations)
    if not (here := own.intersection(wanted)):
        raise InvalidRequestError(
            f"--measure times on this host ({', '.join(sorted(own))}), and advice is on "
            f"{', '.join(wanted)}: call it there, or without --measure"
        )
    return {
        version.master.digest: {each: _timed(version, each, worker) for each in here}
        for version in versions
    }


def _timed(version: ModelVersion, generation: str, worker: WorkerContext) -> TimedHere:
    from compiler_worker.timing.unbuilt import time_unbuilt

    with Steps().step(f"Timing of {version.name} on {generation}") as line:
        try:
            found = time_unbuilt(version, Generation.parse(generation), worker)
        except SmeltError as error:
            # The advice by graph and store stands all the same.
            print_remark(f"{version.name} is not measured: {error}")
            return {}
        took = (f"{kind} {p} {1000 * s:.3g} ms" for (kind, p), s in found.items())
        line.summary = ", ".join(took) or "nothing: less than two engines need no build here"
    return found
