"""Which engines are timed together.

A new engine is timed in its proof, beside the one that was best before: this links its figures to
those of the earlier runs. A run of its own is for engines that were proven without another one
beside them, and for those that are not clearly faster or slower than the fallback or the best.
"""

from collections.abc import Collection, Mapping, Sequence

from compiler_worker.children.requests import JointEntrant
from compiler_worker.worker_context import WorkerContext
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import EngineManifest, ModelVersion, PublishedEngine
from services.contracts.selection.joint_order import joint_order, unsettled
from services.contracts.selection.joint_run import JointRun
from services.contracts.selection.selection import GATED, fastest_first, select


def best_beside(
    manifest: EngineManifest, version: ModelVersion, device: DeviceFacts, worker: WorkerContext
) -> PublishedEngine | None:
    """The engine that a new one is timed beside; None without one, or if it was timed already.

    Args:
        manifest: of the new one.
        version: its engines and its recipe.
        device: on which it is proven.
        worker: its registry has the engines and the earlier runs.
    """
    if not worker.settings.benchmark_together:
        return None
    runs = worker.registry.joint_runs(version.master.digest)
    digest = manifest.key.digest()
    if any(digest in run.digests for run in runs if run.device.generation == device.generation):
        return None
    known = _candidates(version, device, worker)
    known.pop(digest, None)
    best = _best(known, device, runs)
    return best if best and best.manifest.buckets == manifest.buckets else None


def entrants_of(
    version: ModelVersion,
    device: DeviceFacts,
    worker: WorkerContext,
    done: Collection[str] = (),
) -> list[PublishedEngine]:
    """The best engine so far, and one that is to be timed beside it; empty when there is none.

    Args:
        version: its engines and its recipe.
        device: on which they are timed.
        worker: its registry has the engines and the earlier runs.
        done: digests of those that were timed just now, in their proofs or after them.
    """
    runs = worker.registry.joint_runs(version.master.digest)
    known = _candidates(version, device, worker)
    best = _best(known, device, runs)
    if best is None:
        return []
    again = unsettled(known.values(), version.recipe, device.generation, runs)
    uncovered = joint_order(known, device.generation, runs).uncovered
    # What left doubt a moment ago would leave it again.
    again = again.difference(done)
    waiting = (uncovered | again) - {best.digest}
    if waiting:
        return [best, fastest_first(known[digest] for digest in waiting)[0]]
    return [best] if best.digest in again else []


def entrant_of(engine: PublishedEngine, worker: WorkerContext) -> JointEntrant:
    """What a child needs to load an engine beside others."""
    return JointEntrant(
        manifest=engine.manifest,
        engine_dir=worker.registry.materialise_engine(engine),
        held_bytes=engine.proof.peak_memory_bytes,
    )


def _best(
    engines: Mapping[str, PublishedEngine], device: DeviceFacts, runs: Sequence[JointRun]
) -> PublishedEngine | None:
    """Who leads by the runs; by the proofs where no run has any."""
    covered = engines.keys() - joint_order(engines, device.generation, runs).uncovered
    order = joint_order(covered, device.generation, runs).order
    fastest = [engines[digest] for digest in order] or fastest_first(engines.values())
    return fastest[0] if fastest else None


def _candidates(
    version: ModelVersion, device: DeviceFacts, worker: WorkerContext
) -> dict[str, PublishedEngine]:
    """All that could serve a version, also those that the gate keeps from it so far."""
    engines = worker.registry.engines(version.master.digest)
    found = select(engines, device, version=version)
    digests = {rejection.digest for rejection in found.rejections if rejection.reason in GATED}
    fitting = [each for each in (found.engine, *found.runners_up) if each is not None]
    fitting += [engine for engine in engines if engine.digest in digests]
    timed = [engine for engine in fitting if engine.proof.timings]
    # Without buckets in the recipe, another release may have chosen others.
    return {e.digest: e for e in timed if e.manifest.buckets == timed[0].manifest.buckets}
