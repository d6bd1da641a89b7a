"""The build, one line per step: read `_run_steps` from top to bottom.

plan keys, keep the plan → for each key, in child processes: build, prove, time beside the best so
far → sign → publish → record; at last time what earlier runs left open. Announcing is the caller's.
A published key is up to date: keys name everything that changes an engine, so building it again
could give no other one. A key that another worker builds now is left to it, and its result is taken
(`turns`).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler_worker.builders.select import build_place
from compiler_worker.building.attempt import Attempt
from compiler_worker.building.publish import engine_manifest, write_engine_folder
from compiler_worker.building.shared_cache import shared_cache
from compiler_worker.building.turns import Turns, leased
from compiler_worker.children.child_jobs import BUILD
from compiler_worker.children.process import run_child
from compiler_worker.children.requests import BuildRequest, Stage
from compiler_worker.devices import device_that_runs
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.plans.plan_document import chosen, keep_plans
from compiler_worker.proof.proof_job import prove, prove_published
from compiler_worker.timing.joint import compare_engines
from compiler_worker.worker_context import MASTER_FILE, WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_plan import BuildPlan, is_of_other_code
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.builds.code_digest import proof_code
from services.contracts.errors import AlreadyPublishedError, BuildError, SmeltError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import Precision
from services.contracts.model.manifest import (
    EngineManifest,
    ModelVersion,
    Proof,
    ProofOutcome,
    PublishedEngine,
)
from services.contracts.model.precisions import is_tried
from services.contracts.model.recipe import Recipe
from services.contracts.process.disk_room import FULL
from services.contracts.selection.joint_run import JointRun

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """What became of everything that was wanted.

    Attributes:
        plans: planned and skipped combinations.
        records: one for each attempt of this run.
        up_to_date: engines that were published before.
        joint_runs: in which proven ones were timed beside each other meanwhile.
        tried: precisions that the recipe leaves to `auto`: a proof that refuses them is no failure.
    """

    plans: tuple[BuildPlan, ...]
    records: tuple[BuildRecord, ...]
    up_to_date: tuple[PublishedEngine, ...]
    joint_runs: tuple[JointRun, ...] = ()
    tried: frozenset[Precision] = frozenset()

    @property
    def failures(self) -> tuple[BuildRecord, ...]:
        """Attempts that failed; an engine that is built but unproven is no failure."""
        return tuple(
            each
            for each in self.records
            if not each.outcome.is_good
            and (each.outcome is BuildOutcome.FAILED or each.key.precision not in self.tried)
        )

    @property
    def is_success(self) -> bool:
        """Whether nothing failed."""
        return not self.failures and not any(
            engine.proof.outcome is ProofOutcome.FAILED
            and engine.manifest.key.precision not in self.tried
            for engine in self.up_to_date
        )


def build_model(
    version: ModelVersion,
    wanted: Wanted,
    worker: WorkerContext,
    on_turn: Callable[[int, int], None] = lambda place, total: None,  # noqa: ARG005
) -> BuildReport:
    """Build, prove and publish every engine of a model version that this machine can build.

    One failure does not stop the others: it stands in its record.

    Args:
        version: of the model.
        wanted: which of its engines.
        worker: builds them.
        on_turn: called before each of them, with its place and how many there are.
    """
    timed_before = worker.registry.joint_runs(version.master.digest)
    plans = chosen(keep_plans(version, wanted, worker), wanted, worker.registry)
    planned = (each.key for plan in plans for each in plan.planned)
    keys = sorted(planned, key=lambda key: build_place(key, version))
    records: list[BuildRecord] = []
    up_to_date: list[PublishedEngine] = []
    turns = Turns(keys, worker)
    for turn in turns:
        on_turn(len(records) + len(up_to_date) + 1, len(keys))
        if turn.lease is not None:
            with turn.lease as lease:
                record = attempt_build(version, turn.key, leased(worker, lease))
            # What ended here is the lease alone. One that was published before that counts.
            if lease.lost_to() and not record.outcome.is_good:
                turns.again(turn.key)
            else:
                records.append(record)
        elif turn.record is not None:
            records.append(turn.record)
        elif turn.published is not None:
            attempt = Attempt(turn.key, worker, stage=Stage.PROVE)
            try:
                up_to_date.append(_proven(attempt, turn.published, version, wanted, worker))
            except SmeltError as error:
                # No verdict, as when a proof was killed: it is no fault of the engine, which is
                # tried again as after any other failure.
                record = attempt.failed(error)
                worker.registry.record_build(record)
                records.append(record)
        if wanted.is_first and _is_any_proven(records, up_to_date):
            break
    compare_engines(version, worker, [record.key.digest() for record in records])
    runs = worker.registry.joint_runs(version.master.digest)
    return BuildReport(
        plans=tuple(plans),
        records=tuple(records),
        up_to_date=tuple(up_to_date),
        joint_runs=tuple(run for run in runs if run not in timed_before),
        tried=_tried(version.recipe, wanted),
    )


def _tried(recipe: Recipe, wanted: Wanted) -> frozenset[Precision]:
    if wanted.precisions:
        return frozenset()
    return frozenset(each for each in Precision if is_tried(recipe, each))


def _is_any_proven(records: Sequence[BuildRecord], up_to_date: Sequence[PublishedEngine]) -> bool:
    is_built = any(record.outcome is BuildOutcome.PROVEN for record in records)
    return is_built or any(e.proof.outcome is ProofOutcome.PASSED for e in up_to_date)


def attempt_build(version: ModelVersion, key: BuildKey, worker: WorkerContext) -> BuildRecord:
    """Make one attempt to build one key, and keep its record.

    A failure of which another worker is the reason, who builds it now, is not kept.

    Args:
        version: the model version that the key is of.
        key: what to build.
        worker: what all builds of this worker share.

    Raises:
        StoreError: the record itself could not be stored.
    """
    attempt = Attempt(key, worker)
    try:
        with worker.work_folder(key) as folder:
            record = _run_steps(attempt, version, worker, folder)
    except SmeltError as error:
        record = attempt.failed(error)
    except Exception as error:
        # A fault of our own is reported as such, and keeps no other key from being built.
        logger.exception(
            "build of %s %s failed with an internal worker error", key.kind, key.generation
        )
        record = attempt.failed(error, _fault_words(error, worker.settings.cache_dir))
    logger.info("build of %s %s: %s %s", key.kind, key.generation, record.outcome, record.reason)
    if record.outcome.is_good or not worker.stop_reason():
        worker.registry.record_build(record)
    return record


def _fault_words(error: Exception, cache_dir: Path) -> str:
    """What went wrong outside of compilers and proofs; a full disk is no fault of the code."""
    if isinstance(error, OSError) and error.errno in FULL:
        return f"{error.strerror}: {error.filename or cache_dir}; free disk space there"
    return f"internal worker error: {error!r}"


def _run_steps(
    attempt: Attempt, version: ModelVersion, worker: WorkerContext, folder: Path
) -> BuildRecord:
    manifest, engine_dir = build_in_child(attempt, version, worker, folder)
    proof = prove(manifest, engine_dir, version, worker, folder, attempt.follow)
    if proof.outcome is ProofOutcome.FAILED:
        return attempt.record(BuildOutcome.PROOF_FAILED, reason=proof.reason, proof=proof)
    with attempt.stage(Stage.PUBLISH):
        is_ours = _publish(manifest, engine_dir, proof, worker)
    is_proven = proof.outcome is ProofOutcome.PASSED
    return attempt.record(
        BuildOutcome.PROVEN if is_proven else BuildOutcome.BUILT,
        reason="" if is_ours else "another worker published this key first; its engine is used",
        proof=proof,
    )


def build_in_child(
    attempt: Attempt, version: ModelVersion, worker: WorkerContext, folder: Path
) -> tuple[EngineManifest, Path]:
    """Build an engine in a child process.

    Args:
        attempt: follows the child's stages and log lines.
        version: its master and calibration set are read.
        worker: what all builds of this worker share.
        folder: of this attempt, absolute; the engine's files are below it until they are published.

    Returns:
        The manifest, and a folder with the files under their published names: an engine that finds
        a file by its place in the build folder fails when it is proven there, not in a replica.

    Raises:
        BuildError: the builder refused, the child crashed or passed its limits.
    """
    with attempt.stage(Stage.OPEN):
        master_path = worker.registry.materialise_master(version.master) / MASTER_FILE
    (folder / "build").mkdir()
    # Apart from request and result: whatever lies in the workspace may be taken for an engine's
    # file.
    (folder / "files").mkdir()
    calibration = version.calibration if attempt.key.calibration_digest else None
    request = BuildRequest(
        key=attempt.key,
        master=version.master,
        master_path=master_path,
        calibration_path=worker.registry.plain_samples(calibration, folder / "build"),
        drawn_by=version.recipe if calibration and version.traffic else None,
        workspace=folder / "files",
        cache_dir=worker.settings.cache_dir.absolute(),
        num_threads=worker.settings.num_threads,
    )
    with shared_cache(attempt.key, worker) as compile_cache:
        request = request.model_copy(update={"compile_cache": compile_cache})
        outcome = run_child(BUILD, request, folder / "build", worker.build_limits, attempt.report)
    attempt.follow(outcome)
    built = outcome.require(BuildError)
    manifest = engine_manifest(attempt.key, version.master, built, outcome.peak_memory_bytes)
    return manifest, write_engine_folder(built.files, folder / "engine")


def _publish(
    manifest: EngineManifest, engine_dir: Path, proof: Proof, worker: WorkerContext
) -> bool:
    """Publish what was proven, byte for byte; False when the key was taken meanwhile."""
    files = {name: engine_dir / name for name in manifest.files}
    try:
        worker.registry.publish_engine(manifest, files, proof)
    except AlreadyPublishedError:
        return False
    return True


def _proven(
    attempt: Attempt,
    engine: PublishedEngine,
    version: ModelVersion,
    wanted: Wanted,
    worker: WorkerContext,
) -> PublishedEngine:
    """Prove an engine that runs on a device of this machine and is not proven for it.

    One that other code of Smelt's judged, or that is asked for by its key, is proven again.
    """
    generation = Generation.parse(engine.manifest.key.generation)
    device = device_that_runs(generation, worker.devices)
    if device is None:
        return engine
    proof = engine.proof
    proven_on = engine.proof.device
    # A proof on a higher CPU class does not cover this one; selection would pass it over.
    is_proven_here = (
        proof.outcome is ProofOutcome.PASSED
        and proven_on is not None
        and proven_on.parsed_generation.runs_on(device.parsed_generation)
    )
    is_again = wanted.keys or is_of_other_code(proof, proof_code())
    if not is_again and (is_proven_here or proof.outcome is ProofOutcome.FAILED):
        return engine
    return prove_published(engine.digest, worker, version, attempt.follow)
