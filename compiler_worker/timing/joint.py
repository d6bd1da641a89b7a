"""Times proven engines together, so that the best is chosen by figures of one run.

A proof times its engine alone with eager and the fallback. When the last engine of a build is
proven, all that could serve are timed once more, in turns at each shape. Later newcomers are
timed beside the one that was best before, which links their figures to the earlier runs'. So are
those that are not clearly faster or slower than the fallback; a controller launches that again
after a while.
"""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compiler_worker.building.publish import now
from compiler_worker.building.turns import awaited_lease, leased
from compiler_worker.children.child_jobs import TIME
from compiler_worker.children.process import run_child
from compiler_worker.children.requests import (
    ChildEvent,
    JointEntrant,
    JointRequest,
    JointResult,
    Stage,
)
from compiler_worker.proof.proof_job import ProofJob, proof_request
from compiler_worker.worker_context import WorkerContext
from services.contracts.errors import ProofError, SmeltError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.selection.joint_order import joint_order, unsettled
from services.contracts.selection.joint_run import JointRun
from services.contracts.selection.selection import GATED, fastest_first, select

logger = logging.getLogger(__name__)

# All are loaded at once, and each adds its share of seconds: the slowest by their proofs wait.
MAX_ENTRANTS = 8
# Of the memory that a proof may take; the fallback's compiler needs some too.
_ENGINES_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class Entrants:
    """The engines of one joint run.

    Attributes:
        incumbent: digest of the best one so far, "" without one; it takes part.
        left_out: why others do not, by digest.
    """

    engines: tuple[PublishedEngine, ...]
    incumbent: str
    left_out: dict[str, str]


def compare_engines(version: ModelVersion, worker: WorkerContext) -> Iterator[JointRun]:
    """Time what is proven for this machine's devices and was not compared yet.

    What fails here fails no build: engines are then compared by their own proofs.
    """
    if not worker.settings.benchmark_together:
        return
    for device in worker.devices.values():
        try:
            run = _time_on(device, version, worker)
        except SmeltError as error:
            logger.warning(
                "engines of %s are compared by their own proofs on %s: %s",
                version.name,
                device.generation,
                error,
            )
            continue
        except Exception:
            # A fault of our own: the engines are built, and their builder gets its report.
            logger.exception("engines of %s are not timed together", version.name)
            continue
        if run is not None:
            yield run


def entrants_of(
    version: ModelVersion, device: DeviceFacts, worker: WorkerContext
) -> Entrants | None:
    """The engines to be timed on a device; None when there are none.

    Args:
        version: its engines and its recipe.
        device: on which they are timed.
        worker: its registry has the engines and the earlier runs.
    """
    registry = worker.registry
    runs = registry.joint_runs(version.master.digest)
    candidates = _candidates(registry.engines(version.master.digest), device, version)
    known = {engine.digest: engine for engine in candidates}
    joint = joint_order(known, device.generation, runs)
    again = unsettled(candidates, version.recipe, device.generation, runs)
    if not again and (not joint.uncovered or len(known) < 2):
        return None
    best = joint_order(known.keys() - joint.uncovered, device.generation, runs).order[:1]
    waiting = (joint.uncovered | again).difference(best)
    newcomers = fastest_first(known[digest] for digest in waiting)
    # Without an incumbent, engines that an earlier run left out get another chance.
    others = newcomers if best else fastest_first(candidates)
    entrants, left_out = _bounded([*(known[digest] for digest in best), *others], worker)
    return Entrants(engines=entrants, incumbent="".join(best), left_out=left_out)


def _time_on(device: DeviceFacts, version: ModelVersion, worker: WorkerContext) -> JointRun | None:
    entrants = entrants_of(version, device, worker)
    if entrants is None:
        return None
    key = entrants.engines[0].manifest.key
    with awaited_lease(_lease_digest(version, device), key, worker) as lease:
        # Its last holder may have timed the same.
        entrants = entrants_of(version, device, worker)
        if entrants is None:
            return None
        run = joint_run(entrants, version, device, leased(worker, lease))
        worker.registry.add_joint_run(run)
    return run


def _candidates(
    engines: Sequence[PublishedEngine], device: DeviceFacts, version: ModelVersion
) -> list[PublishedEngine]:
    """All that could serve a version, also those that the gate keeps from it so far."""
    found = select(engines, device, version=version)
    digests = {rejection.digest for rejection in found.rejections if rejection.reason in GATED}
    fitting = [each for each in (found.engine, *found.runners_up) if each is not None]
    fitting += [engine for engine in engines if engine.digest in digests]
    timed = [engine for engine in fitting if engine.proof.timings]
    # Without buckets in the recipe, another release may have chosen others.
    return [each for each in timed if each.manifest.buckets == timed[0].manifest.buckets]


def _bounded(
    engines: Sequence[PublishedEngine], worker: WorkerContext
) -> tuple[tuple[PublishedEngine, ...], dict[str, str]]:
    """The first ones, as far as number and memory allow, but two at least."""
    left_bytes = worker.proof_limits.allowance(0).num_bytes * _ENGINES_SHARE
    taken: list[PublishedEngine] = []
    left_out: dict[str, str] = {}
    for engine in engines:
        left_bytes -= engine.proof.peak_memory_bytes
        if len(taken) >= 2 and left_bytes < 0:
            left_out[engine.digest] = "not timed with the others: their memory is at its limit"
        elif len(taken) >= MAX_ENTRANTS:
            left_out[engine.digest] = f"not among the {MAX_ENTRANTS} fastest by their own proofs"
        else:
            taken.append(engine)
    return tuple(taken), left_out


def joint_run(
    entrants: Entrants, version: ModelVersion, device: DeviceFacts, worker: WorkerContext
) -> JointRun:
    """One run in a child process, signed if this worker has a key; it is not kept yet.

    Args:
        entrants: from `entrants_of`.
        version: its master, recipe and samples.
        device: one of this machine.
        worker: what all builds of this worker share.

    Raises:
        ProofError: there is none: the child was ended, or too few engines run in it.
    """
    result = _result(entrants, version, device, worker)
    run = JointRun(
        master_digest=version.master.digest,
        device=device,
        incumbent=entrants.incumbent,
        shapes=result.shapes,
        left_out=entrants.left_out | result.failed,
        fallback=result.fallback,
        created_at=now(),
    )
    if worker.signer is None:
        return run
    (signature,) = worker.signer.sign(run.payload()).signatures
    return run.model_copy(update={"signature": signature})


def _result(
    entrants: Entrants, version: ModelVersion, device: DeviceFacts, worker: WorkerContext
) -> JointResult:
    key = entrants.engines[0].manifest.key
    with worker.work_folder(key) as folder:
        request = JointRequest(
            entrants=tuple(
                JointEntrant(
                    proof=proof_request(_job(engine, version, device, worker), worker, folder),
                    held_bytes=engine.proof.peak_memory_bytes,
                )
                for engine in entrants.engines
            ),
            eager_held_bytes=entrants.engines[0].proof.eager_peak_memory_bytes,
        )
        outcome = run_child(
            TIME,
            request,
            folder,
            worker.proof_limits,
            lambda event: worker.on_progress(key, _with_num_engines(event, len(entrants.engines))),
        )
    result = outcome.require(ProofError)
    if fault := result.failed.get(entrants.incumbent):
        # Without it nothing links this run to the earlier ones.
        raise ProofError(f"the best engine so far, {entrants.incumbent[:12]}: {fault}")
    return result


def _with_num_engines(event: ChildEvent, num_engines: int) -> ChildEvent:
    """Names all engines of the stage: events go under the key of one engine."""
    if event.stage is not Stage.BENCHMARK:
        return event
    words = f"{num_engines} engines in turns, eager and the fallback beside them"
    return event.model_copy(update={"line": words})


def _job(
    engine: PublishedEngine, version: ModelVersion, device: DeviceFacts, worker: WorkerContext
) -> ProofJob:
    return ProofJob(
        manifest=engine.manifest,
        engine_dir=worker.registry.materialise_engine(engine),
        version=version,
        device=device,
    )


def _lease_digest(version: ModelVersion, device: DeviceFacts) -> str:
    """What the lease of a joint run is of: one master on one generation."""
    scope = f"joint run {version.master.digest} {device.generation}"
    return hashlib.sha256(scope.encode()).hexdigest()
