"""Times proven engines together that their proofs did not compare, or not clearly.

A proof times its engine beside the best one so far. What two workers proved at the same time is
timed in a process of its own when a build ends; so is what an earlier run left open, and a
controller launches builds for that after a while.
"""

import hashlib
import logging
from collections.abc import Collection, Sequence

from compiler_worker.building.turns import awaited_lease, leased
from compiler_worker.children.child_jobs import PROVE
from compiler_worker.children.process import run_child
from compiler_worker.children.requests import JointEntrant, JointResult
from compiler_worker.proof.proof_job import ProofJob, proof_request
from compiler_worker.timing.entrants import entrant_of, entrants_of
from compiler_worker.worker_context import WorkerContext
from services.contracts.errors import ProofError, SmeltError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.selection.joint_run import JointRun

logger = logging.getLogger(__name__)


def compare_engines(
    version: ModelVersion, worker: WorkerContext, proven: Collection[str] = ()
) -> None:
    """Time what was not compared yet on this machine's devices, or in doubt; keep the runs.

    What fails here fails no build: engines are then compared by their own proofs.

    Args:
        version: of the model.
        worker: what all builds of this worker share.
        proven: digests of engines whose proofs are of this moment: doubt is for a later build.
    """
    if not worker.settings.benchmark_together:
        return
    for device in worker.devices.values():
        try:
            _time_on(device, version, worker, {*proven})
        except SmeltError as error:
            logger.warning(
                "engines of %s are compared by their own proofs on %s: %s",
                version.name,
                device.generation,
                error,
            )
        except Exception:
            # A fault of our own: the engines are built, and their builder gets its report.
            logger.exception("engines of %s are not timed together", version.name)


def _time_on(
    device: DeviceFacts, version: ModelVersion, worker: WorkerContext, done: set[str]
) -> None:
    while engines := entrants_of(version, device, worker, done):
        key = engines[0].manifest.key
        with awaited_lease(_lease_digest(version, device), key, worker) as lease:
            # Its last holder may have timed the same.
            engines = entrants_of(version, device, worker, done)
            if engines:
                run = joint_run(engines, version, device, leased(worker, lease))
                worker.registry.add_joint_run(run)
        done |= {engine.digest for engine in engines}


def joint_run(
    engines: Sequence[PublishedEngine],
    version: ModelVersion,
    device: DeviceFacts,
    worker: WorkerContext,
) -> JointRun:
    """One run in a child process, signed if this worker has a key; it is not kept yet.

    Args:
        engines: the first one was best before.
        version: its master, recipe and samples.
        device: one of this machine.
        worker: what all builds of this worker share.

    Raises:
        ProofError: there is none: the child was ended, or the best engine does not run in it.
    """
    best = engines[0]
    entrants = [entrant_of(engine, worker) for engine in engines]
    timed = timed_together(entrants, version, device, worker)
    return worker.joint_run(timed, version.master, device, best.digest)


def timed_together(
    engines: Sequence[JointEntrant],
    version: ModelVersion,
    device: DeviceFacts,
    worker: WorkerContext,
    **changes: object,
) -> JointResult:
    """What a child found that timed engines beside each other and eager.

    Args:
        engines: of the version's master; they need not be published.
        version: its recipe and samples.
        device: one of this machine.
        worker: what all builds of this worker share.
        changes: fields of the child's request.

    Raises:
        ProofError: the child was ended, or the first engine does not run in it.
    """
    first, *others = engines
    key = first.manifest.key
    job = ProofJob(
        manifest=first.manifest, engine_dir=first.engine_dir, version=version, device=device
    )
    changes |= {"beside": tuple(others), "is_judged": False}
    with worker.work_folder(key) as folder:
        request = proof_request(job, worker, folder).model_copy(update=changes)
        outcome = run_child(
            PROVE, request, folder, worker.proof_limits, lambda e: worker.on_progress(key, e)
        )
    result = outcome.require(ProofError)
    if result.timed is None or result.proof.reason:
        # Without it nothing links this run to the earlier ones.
        raise ProofError(f"the first engine, {first.digest[:12]}: {result.proof.reason}")
    return result.timed


def _lease_digest(version: ModelVersion, device: DeviceFacts) -> str:
    """What the lease of a joint run is of: one master on one generation."""
    scope = f"joint run {version.master.digest} {device.generation}"
    return hashlib.sha256(scope.encode()).hexdigest()
