"""Proven engines are timed together by real children, and what they took decides."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compiler_worker.building.build_report import report_lines
from compiler_worker.building.pipeline import BuildReport, build_model
from compiler_worker.children.child_jobs import ChildJob
from compiler_worker.children.process import ChildOutcome, run_child
from compiler_worker.children.requests import ProofRequest, Stage
from compiler_worker.devices import main_device
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.timing.joint import compare_engines, joint_run
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.errors import CorruptBlobError, ProofError
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.document import Document
from services.contracts.model.manifest import ModelVersion, SideTiming
from services.contracts.ratio import Ratio
from services.contracts.security.signing import Signer, TrustRoot
from services.contracts.selection.joint_order import joint_order
from services.contracts.selection.joint_run import JointRun
from services.contracts.selection.selection import select
from tests.integration.compiler.conftest import RECIPE, hurried, with_settings
from tests.signing_keys import new_keys

pytestmark = pytest.mark.usefixtures("forked_children")

ORT = Wanted(kinds=(EngineKind.ONNXRUNTIME,))
TWO_KINDS = Wanted(kinds=(EngineKind.ONNXRUNTIME, EngineKind.OPENVINO))


def assert_faults_are_told_alone(
    version: ModelVersion, worker: WorkerContext, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that is cut short, and one that meets a fault of the worker itself."""
    with caplog.at_level(logging.WARNING), hurried(worker, proof_time_limit_s=1e-3) as hasty:
        compare_engines(version, hasty)
    assert "are compared by their own proofs" in caplog.text
    with pytest.MonkeyPatch.context() as faulty:
        faulty.setattr("compiler_worker.timing.joint.run_child", lambda *_: 1 / 0)
        compare_engines(version, worker)
    assert "are not timed together" in caplog.text


def assert_what_does_not_run_is_left_out(
    version: ModelVersion, worker: WorkerContext, tmp_path: Path
) -> None:
    """But for the best one so far: without it nothing would link a run to the earlier ones."""
    device, registry = main_device(worker.devices), worker.registry
    best, *others = registry.engines()
    toolchain = dict.fromkeys(best.manifest.key.toolchain, "0.1")
    key = best.manifest.key.model_copy(update={"toolchain": toolchain})
    foreign = best.model_copy(
        update={
            "digest": key.digest(),
            "manifest": best.manifest.model_copy(update={"key": key}),
        }
    )
    with pytest.raises(ProofError, match=r"0\.1"):
        joint_run([foreign, *others], version, device, worker)
    keys = new_keys(tmp_path)
    signing = replace(worker, signer=Signer(keys.private))
    found = joint_run([*others, foreign], version, device, signing)
    assert found.digests == {engine.digest for engine in others}
    assert set(found.left_out) == {foreign.digest}
    registry.add_joint_run(found)
    assert registry.joint_runs(version.master.digest, TrustRoot(keys.public)) == [found]


def without_doubt(run: JointRun, first: str) -> JointRun:
    """What a machine without other load might have found: one engine much faster than the rest."""

    def clear(side: SideTiming, times_faster: float) -> SideTiming:
        ratio = Ratio(median=times_faster, low=times_faster, high=times_faster, num_pairs=100)
        return side.model_copy(update={"ratio": ratio})

    shapes = [
        shape.model_copy(
            update={
                "eager": clear(shape.eager, 1.0),
                "engines": {
                    digest: clear(side, 8.0 if digest == first else 2.0)
                    for digest, side in shape.engines.items()
                },
            }
        )
        for shape in run.shapes
    ]
    return run.model_copy(update={"shapes": tuple(shapes)})


@pytest.mark.timeout(300)
def test_candidates_are_timed_together_and_newcomers_beside_the_best(
    worker: WorkerContext,
    version: ModelVersion,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    both = (Precision.FP32, Precision.INT8_WEIGHT_ONLY)
    recipe = RECIPE.model_copy(update={"precisions": both, "must_beat_fallback": False})
    version = version.model_copy(update={"recipe": recipe})
    worker = with_settings(worker, benchmark_together=True)
    device, registry = main_device(worker.devices), worker.registry

    def build(kinds: Wanted, precision: Precision) -> BuildReport:
        wanted = Wanted(kinds=kinds.kinds, precisions=(precision,))
        return build_model(version, wanted, worker)

    alone = build(ORT, Precision.FP32)
    assert alone.joint_runs == (), "one engine was timed in its proof"

    (first,) = registry.engines()
    second = build(TWO_KINDS, Precision.FP32)
    # Of the proof; another one follows where a machine's load leaves doubt.
    first_run, *_ = second.joint_runs
    assert first_run.digests == {engine.digest for engine in registry.engines()}
    assert (first_run.incumbent, first_run.left_out) == (first.digest, {})
    (proof,) = (e.proof for e in registry.engines() if e.digest != first.digest)
    (newcomer,) = first_run.digests - {first.digest}
    assert proof.timings == first_run.timings(newcomer), "timed once"
    assert [shape.sizes["batch"] for shape in first_run.shapes] == [2, 4]
    for shape in first_run.shapes:
        for side in (*shape.engines.values(), shape.eager):
            assert 0 < side.p50_s <= side.p95_s
            assert side.throughput == pytest.approx(shape.sizes["batch"] / side.p50_s)
            assert side.peak_memory_bytes > 0
    assert any("timed together" in line for line in report_lines(second, "store"))
    kept = registry.joint_runs(version.master.digest)[-1]
    assert kept == second.joint_runs[-1]
    # Else it is for this machine's load to say whether they are timed again.
    fastest = min(kept.digests, key=kept.mean_s)
    registry.add_joint_run(without_doubt(kept, fastest))
    runs = registry.joint_runs(version.master.digest)
    selection = select(registry.engines(), device, version=version, runs=runs)
    assert selection.engine is not None
    assert selection.engine.digest == fastest
    at = kept.created_at[:19].replace("T", " ")
    assert selection.joint.words == f"timed together on {at}Z, 2 candidates"

    assert build(TWO_KINDS, Precision.FP32).joint_runs == (), "nothing is new"

    # One that fails is no reason for a failed build, and is made up for by the next one.
    # ONNX Runtime's: OpenVINO has no such product where oneDNN is held to AVX2.
    rounded = Wanted(kinds=ORT.kinds, precisions=(Precision.INT8_WEIGHT_ONLY,))
    alone = with_settings(worker, benchmark_together=False)
    assert build_model(version, rounded, alone).is_success
    assert_faults_are_told_alone(version, worker, caplog)

    (second_run,) = build(ORT, Precision.INT8_WEIGHT_ONLY).joint_runs
    assert second_run.incumbent == selection.engine.digest
    assert len(second_run.digests) == 2
    digests = {engine.digest for engine in registry.engines()}
    assert len(digests) == 3
    runs = registry.joint_runs(version.master.digest)
    assert set(joint_order(digests, device.generation, runs).order) == digests
    assert_what_does_not_run_is_left_out(version, worker, tmp_path)


def test_the_best_engine_does_not_cost_a_newcomer_its_proof(
    worker: WorkerContext, version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proven without it beside, the newcomer is timed with it when the build ends."""
    worker = with_settings(worker, benchmark_together=True)
    build_model(version, ORT, worker)
    asked: list[int] = []

    def cut_short(job: ChildJob[Any, Any], request: Document, *rest: Any) -> ChildOutcome[Any]:
        if isinstance(request, ProofRequest):
            asked.append(len(request.beside))
            if request.beside:
                return ChildOutcome(stage=Stage.BENCHMARK, failure="killed")
        return run_child(job, request, *rest)

    monkeypatch.setattr("compiler_worker.proof.proof_job.run_child", cut_short)
    report = build_model(version, TWO_KINDS, worker)
    assert (report.is_success, asked) == (True, [1, 0])
    assert [len(run.digests) for run in report.joint_runs] == [2]


@pytest.mark.slow
def test_damage_to_the_best_engine_does_not_cost_a_newcomer_its_proof(
    worker: WorkerContext, version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = with_settings(worker, benchmark_together=True)
    build_model(version, ORT, worker)

    def damaged(*_: object) -> Path:
        raise CorruptBlobError("bytes are not those of their digest")

    monkeypatch.setattr(type(worker.registry), "materialise_engine", damaged)
    report = build_model(version, TWO_KINDS, worker)
    assert report.is_success
    assert [record.outcome for record in report.records] == [BuildOutcome.PROVEN]
    assert report.joint_runs == ()
