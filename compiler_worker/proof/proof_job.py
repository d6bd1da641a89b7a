"""Proofs in child processes: of an engine just built, or of a published one."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler_worker.building.publish import proof_not_run
from compiler_worker.building.turns import awaited_lease, leased
from compiler_worker.children.child_jobs import PROVE
from compiler_worker.children.process import ChildOutcome, run_child
from compiler_worker.children.requests import JointEntrant, ProofRequest, ProofResult, Stage
from compiler_worker.devices import device_that_runs, main_device
from compiler_worker.timing.entrants import best_beside, entrant_of
from compiler_worker.worker_context import MASTER_FILE, WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.errors import (
    EngineIncompatibleError,
    NotFoundError,
    ProofError,
    SmeltError,
)
from services.contracts.hardware.facts import DeviceFacts, Generation
from services.contracts.model.manifest import (
    EngineManifest,
    ModelVersion,
    Proof,
    ProofOutcome,
    PublishedEngine,
)
from services.contracts.terms import calibration_digest, proof_terms
from services.engines.caches.passed_checks import CHECKED, PassedChecks
from services.engines.fallback.fallback_program import importer_code

logger = logging.getLogger(__name__)

_WORST = "worst.npz"


@dataclass(frozen=True, kw_only=True)
class ProofJob:
    """One engine to prove on one local device, against the master and recipe of a version."""

    manifest: EngineManifest
    engine_dir: Path
    version: ModelVersion
    device: DeviceFacts


def prove(
    manifest: EngineManifest,
    engine_dir: Path,
    version: ModelVersion,
    worker: WorkerContext,
    folder: Path,
    follow: Callable[[ChildOutcome[Any]], None],
) -> Proof:
    """Prove and time an engine in a child process; without a device that runs it, say which.

    Args:
        manifest: of the engine.
        engine_dir: its files.
        version: whose recipe defines what is equal.
        worker: what all builds of this worker share.
        folder: of this attempt; folders of children are made in it.
        follow: called with how the last child ended, whatever it found.

    Returns:
        The proof, to be published. Its worst sample, the run in which the engine was timed beside
        the best one so far, and its signature are in the store: a replica with a trust root must
        never find an engine without.

    Raises:
        EngineIncompatibleError: the engine is for another device or library.
        ProofError: there is no verdict, as the reference is not to be trusted or the child ended.
    """
    device = device_that_runs(Generation.parse(manifest.key.generation), worker.devices)
    if device is None:
        proof = proof_not_run(manifest.key, main_device(worker.devices))
    else:
        job = ProofJob(manifest=manifest, engine_dir=engine_dir, version=version, device=device)
        proof = _proof(job, worker, folder, follow)
    worker.sign(manifest, proof, version.master)
    return proof


def _proof(
    job: ProofJob,
    worker: WorkerContext,
    folder: Path,
    follow: Callable[[ChildOutcome[Any]], None],
) -> Proof:
    beside = _best_beside(job, worker)
    place, outcome = _last_child(job, beside, worker, folder)
    follow(outcome)
    # A child that refused, was killed or hung gives no verdict: an engine keeps its proof.
    result = outcome.require(ProofError, EngineIncompatibleError)
    proof = result.proof
    if proof.outcome is ProofOutcome.PASSED:
        settings = worker.settings
        passed = PassedChecks(settings.cache_dir.absolute() / CHECKED)
        passed.add(job.manifest, job.device, settings.num_threads)
    if proof.worst is not None and (place / _WORST).is_file():
        arrays = worker.registry.keep_sample(place / _WORST)
        worst = proof.worst.model_copy(update={"arrays": arrays})
        proof = proof.model_copy(update={"worst": worst})
    timed = result.timed if proof.outcome is ProofOutcome.PASSED else None
    if beside and timed and beside.digest in timed.shapes[0].engines:
        run = worker.joint_run(timed, job.version.master, job.device, beside.digest)
        worker.registry.add_joint_run(run)
    return proof


def _best_beside(job: ProofJob, worker: WorkerContext) -> JointEntrant | None:
    """The best engine so far; None without one, and where its files are not available."""
    best = best_beside(job.manifest, job.version, job.device, worker)
    try:
        return entrant_of(best, worker) if best else None
    except (SmeltError, OSError) as error:
        # What is wrong with the best engine must not keep its successor from being proven.
        logger.warning("it is timed without the best engine so far: %s", error)
        return None


def _last_child(
    job: ProofJob, beside: JointEntrant | None, worker: WorkerContext, folder: Path
) -> tuple[Path, ChildOutcome[ProofResult]]:
    """Folder and end of the child; of a next one where others than the engine may have ended it."""
    # A compiler that crashes in the fallback must not cost a right engine its proof.
    tries: list[dict[str, Any]] = [{"beside": (beside,)}] if beside else []
    tries += [{}, {"is_fallback_timed": False}] if is_fallback_timed(job, worker) else [{}]
    key = job.manifest.key
    for number, changes in enumerate(tries):
        # Folders of their own: what one child left must not be taken for another one's result.
        place = folder / f"proof-{number}"
        place.mkdir()
        request = proof_request(job, worker, place).model_copy(update=changes)
        outcome = run_child(
            PROVE, request, place, worker.proof_limits, lambda e: worker.on_progress(key, e)
        )
        is_cut = outcome.result is None and outcome.stage is Stage.BENCHMARK
        if not is_cut or worker.stop_reason():
            break
        logger.warning("timing was cut short, child %d: %s", number + 1, outcome.failure)
    return place, outcome


def is_fallback_timed(job: ProofJob, worker: WorkerContext) -> bool:
    """Whether an engine has to be faster than its fallback: no replica serves with a wrong one."""
    verdict = job.version.fallback_verdict
    is_wrong = verdict is not None and verdict.refutes(importer_code())
    return worker.settings.benchmark_fallback and not is_wrong


def proof_request(job: ProofJob, worker: WorkerContext, place: Path) -> ProofRequest:
    """The request of a child that proves.

    Args:
        job: the engine and the model version.
        worker: its registry fetches master and samples to the local disk.
        place: folder of the child.
    """
    registry = worker.registry
    settings = worker.settings
    version = job.version
    samples = version.samples
    calibration = version.calibration if job.manifest.key.calibration_digest else None
    held_out = version.traffic.held_out if calibration and version.traffic else None
    return ProofRequest(
        manifest=job.manifest,
        master=version.master,
        master_path=registry.materialise_master(version.master) / MASTER_FILE,
        recipe=version.recipe,
        engine_dir=job.engine_dir,
        samples_path=registry.materialise_samples(samples) if samples else None,
        calibration_path=registry.plain_samples(calibration, place),
        held_out_path=registry.plain_samples(held_out, place),
        device=job.device,
        cache_dir=settings.cache_dir.absolute(),
        num_threads=settings.num_threads,
        benchmark_s=settings.benchmark_s,
        benchmark_iterations=settings.benchmark_iterations,
        is_fallback_timed=is_fallback_timed(job, worker),
        worst_path=place / _WORST,
    )


def prove_published(
    digest: str,
    worker: WorkerContext,
    version: ModelVersion | None = None,
    follow: Callable[[ChildOutcome[Any]], None] = lambda _: None,
) -> PublishedEngine:
    """Prove a published engine on this machine's device and add the proof as a revision.

    One worker at a time does so: one that waited for another takes its proof.

    Args:
        digest: of the engine, or a prefix of it that names only one.
        worker: what all builds of this worker share.
        version: whose recipe defines what is equal; by default the newest of the same master.
        follow: called with how the child ended, whatever it found.

    Raises:
        NotFoundError: no such engine, or no model version has its master and its terms.
        EngineIncompatibleError: this machine has not the device or library that runs it; the
            message names it.
        ProofError: there is no verdict, as the reference is not to be trusted or the proof's
            process was ended; the engine keeps its proof.
    """
    engine = worker.registry.engine(digest)
    key = engine.manifest.key
    device = device_that_runs(Generation.parse(key.generation), worker.devices)
    if device is None:
        raise EngineIncompatibleError(
            f"engine {engine.digest[:12]} was built for {key.generation}, this machine has "
            f"{main_device(worker.devices).generation}: prove it on a {key.generation} device"
        )
    files = worker.registry.materialise_engine(engine)
    version = version or version_of(key, worker)
    while True:
        with awaited_lease(engine.digest, key, worker) as lease:
            newest = worker.registry.engine(engine.digest)
            if _is_proven_anew(newest, engine, device):
                return newest
            try:
                with worker.work_folder(key) as folder:
                    ours = leased(worker, lease)
                    proof = prove(engine.manifest, files, version, ours, folder, follow)
            except ProofError:
                # A lost lease ended the child. Who holds it now proves the same, and is waited for.
                if not lease.lost_to():
                    raise
                continue
            if lost_to := lease.lost_to():
                # The newest proof counts, and it is that of who holds the lease now.
                logger.warning("the proof of %s is not added: %s", engine.digest[:12], lost_to)
                continue
            return worker.registry.add_proof(engine.digest, proof)


def _is_proven_anew(newest: PublishedEngine, seen: PublishedEngine, device: DeviceFacts) -> bool:
    """Whether another worker proved it for such a device while this one waited."""
    on = newest.proof.device
    is_here = on is not None and on.generation == device.generation
    return newest.proof != seen.proof and is_here


def version_of(key: BuildKey, worker: WorkerContext) -> ModelVersion:
    """The newest model version with an engine's master, proof terms and calibration set.

    Raises:
        NotFoundError: no model version has all three.
    """
    registry = worker.registry
    matches = [
        version
        for name in registry.model_names()
        for version in registry.versions(name)
        if version.master.digest == key.master_digest
        and proof_terms(version.recipe, key.precision, version.samples) == key.proof_terms
        and calibration_digest(version, key.precision) == key.calibration_digest
    ]
    if not matches:
        raise NotFoundError(
            f"no model version has the master {key.master_digest} with the recipe and samples of "
            f"engine {key.digest()[:12]}: build the model's engines again"
        )
    return max(matches, key=lambda version: version.created_at)
