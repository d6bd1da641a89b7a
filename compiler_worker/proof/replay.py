"""`replay KEY`: the worst sample of a failed proof once more, on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler_worker.building.attempt import Attempt
from compiler_worker.building.pipeline import build_in_child
from compiler_worker.children.child_jobs import REPLAY
from compiler_worker.children.process import run_child
from compiler_worker.children.requests import ReplayRequest, ReplayResult
from compiler_worker.devices import device_that_runs
from compiler_worker.proof.claim import sizes_text
from compiler_worker.proof.proof_job import ProofJob, proof_request, version_of
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.errors import EngineIncompatibleError, NotFoundError, ProofError
from services.contracts.hardware.facts import DeviceFacts, Generation
from services.contracts.model.manifest import (
    FailedSample,
    ModelVersion,
    OutputCheck,
    PublishedEngine,
)
from services.contracts.text.words import worker_command


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """The sample then and now."""

    key: BuildKey
    failed: FailedSample
    result: ReplayResult

    @property
    def is_success(self) -> bool:
        """Whether the engine is within its bounds at the sample now."""
        return not any(check.fault for check in self.result.checks)


def replay(prefix: str, worker: WorkerContext) -> ReplayReport:
    """Run the worst sample of a key's newest failed proof on this machine's device.

    An engine that was never published is built once more.

    Raises:
        NotFoundError: no such key, or no proof of it failed with a sample.
        InvalidRequestError: the prefix names several keys.
        EngineIncompatibleError: this machine has not the device that runs it.
        BuildError: the engine could not be built again.
        ProofError: the replay itself did not end.
    """
    key, failed, published = _failed(prefix, worker)
    device = device_that_runs(Generation.parse(key.generation), worker.devices)
    if device is None:
        raise EngineIncompatibleError(
            f"key {key.digest()[:12]} is for {key.generation}: replay it on such a device"
        )
    version = version_of(key, worker)
    with worker.work_folder(key) as folder:
        job = _job(key, published, version, device, worker, folder)
        result = _run(job, failed, worker, folder)
    return ReplayReport(key=key, failed=failed, result=result)


def replay_document(done: ReplayReport) -> dict[str, Any]:
    """Everything, as plain data."""
    return {
        "key": done.key.digest(),
        "failed": done.failed.model_dump(mode="json"),
        "now": done.result.model_dump(mode="json"),
        "is_success": done.is_success,
    }


def replay_lines(done: ReplayReport) -> list[str]:
    """The distances of each output then and now, beside their bounds."""
    failed = done.failed
    key = done.key
    made = "drawn again" if done.result.is_drawn_again else "as it was kept"
    where = f"bucket {failed.bucket} at {sizes_text(failed.sizes)}, {failed.variant}, {made}"
    lines = [f"{key.digest()[:12]} {key.kind} {key.precision} on {key.generation}: {where}"]
    then = {check.output: check for check in failed.checks}
    for now in done.result.checks:
        lines += _check_lines(now, then.get(now.output), failed)
    # Output "" is an engine that failed before it had outputs.
    for lost in then.keys() - {check.output for check in done.result.checks}:
        lines.append(f"{lost or 'engine'}: then: {then[lost].fault or 'within bounds'}")
    verdict = "it is within its bounds here now" if done.is_success else "it fails here too"
    return [*lines, verdict]


def _check_lines(now: OutputCheck, then: OutputCheck | None, failed: FailedSample) -> list[str]:
    name = now.output or "engine"
    if now.output not in failed.allowed:
        return [f"{name}: now: {now.fault}"]
    allowed = failed.allowed[now.output]
    lines = [
        f"{name} {measure}: {getattr(then, measure):.2e} then, {getattr(now, measure):.2e} now, "
        f"{getattr(allowed, measure):.2e} allowed"
        if then
        else f"{name} {measure}: {getattr(now, measure):.2e} now"
        for measure in ("rel_l2", "max_abs", "cosine_distance")
    ]
    return [*lines, *([f"{name}: {now.fault}"] if now.fault else [])]


def _failed(
    prefix: str, worker: WorkerContext
) -> tuple[BuildKey, FailedSample, PublishedEngine | None]:
    registry = worker.registry
    try:
        engine = registry.engine(prefix)
    except NotFoundError:
        digest = registry.attempted(prefix)
        # The newest first: an earlier attempt may have failed for another reason.
        for record in reversed(registry.build_records(digest)):
            if record.proof and record.proof.worst:
                return record.key, record.proof.worst, None
    else:
        digest = engine.digest
        if engine.proof.worst:
            return engine.manifest.key, engine.proof.worst, engine
    raise NotFoundError(
        f"key {digest[:12]}: no proof of it failed at a sample, so there is none to replay; a task "
        "that failed counts over all samples: see smelt why, and prove again with: "
        f"{worker_command(worker.settings.store_url, 'prove', digest[:12])}"
    )


def _job(
    key: BuildKey,
    published: PublishedEngine | None,
    version: ModelVersion,
    device: DeviceFacts,
    worker: WorkerContext,
    folder: Path,
) -> ProofJob:
    registry = worker.registry
    if published is not None:
        manifest = published.manifest
        engine_dir = registry.materialise_engine(published)
    else:
        manifest, engine_dir = build_in_child(Attempt(key, worker), version, worker, folder)
    return ProofJob(manifest=manifest, engine_dir=engine_dir, version=version, device=device)


def _run(job: ProofJob, failed: FailedSample, worker: WorkerContext, folder: Path) -> ReplayResult:
    place = folder / "replay"
    place.mkdir()
    arrays = failed.arrays
    request = ReplayRequest(
        proof=proof_request(job, worker, place),
        failed=failed,
        arrays_path=worker.registry.materialise_samples(arrays) if arrays else None,
    )
    key = job.manifest.key
    outcome = run_child(
        REPLAY,
        request,
        place,
        worker.proof_limits,
        lambda event: worker.on_progress(key, event),
    )
    return outcome.require(ProofError, EngineIncompatibleError)
