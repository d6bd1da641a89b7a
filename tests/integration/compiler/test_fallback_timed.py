"""The benchmark's gate with real parts: a fallback that is compiled, timed, and compared with."""

from typing import Any

import pytest

from compiler_worker.building.build_report import engine_line
from compiler_worker.building.pipeline import build_model
from compiler_worker.children.child_jobs import ChildJob
from compiler_worker.children.process import ChildOutcome, run_child
from compiler_worker.children.requests import ProofRequest, Stage
from compiler_worker.devices import main_device
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.proof.proof_job import prove_published
from compiler_worker.worker_context import WorkerContext
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.document import Document
from services.contracts.model.manifest import ModelVersion, ProofOutcome, SideTiming, Timing
from services.contracts.selection.selection import FallbackReason, select
from services.contracts.selection.speed_gate import speed_over_fallback
from tests.integration.compiler.conftest import with_settings

pytestmark = pytest.mark.usefixtures("forked_children")

ONLY_ORT = Wanted(kinds=(EngineKind.ONNXRUNTIME,))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_proof_has_the_curves_of_engine_eager_and_fallback(
    worker: WorkerContext, version: ModelVersion
) -> None:
    timing_all = with_settings(worker, benchmark_fallback=True)
    build_model(version, ONLY_ORT, timing_all)
    (engine,) = worker.registry.engines()
    proof = engine.proof
    assert proof.outcome is ProofOutcome.PASSED
    assert proof.fallback == "compiled"
    assert len(proof.timings) == 2
    for timing in proof.timings:
        assert timing.eager is not None
        assert timing.fallback is not None
        for side in (timing, timing.eager, timing.fallback):
            assert 0 < side.p50_s <= side.p95_s
            assert side.throughput == pytest.approx(timing.sizes["batch"] / side.p50_s)
            assert side.peak_memory_bytes
    assert speed_over_fallback(proof.timings) is not None
    # One program for all proofs and replicas of this machine.
    (program,) = (worker.settings.cache_dir / "programs").glob("*.pt2")
    written = program.stat().st_ino
    again = prove_published(engine.digest, timing_all, version)
    assert again.proof.fallback == "compiled"
    assert program.stat().st_ino == written


def test_a_fallback_that_does_not_end_does_not_cost_the_engine_its_proof(
    worker: WorkerContext, version: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def cut_short(job: ChildJob[Any, Any], request: Document, *rest: Any) -> ChildOutcome[Any]:
        if isinstance(request, ProofRequest):
            asked.append(request.is_fallback_timed)
            if request.is_fallback_timed:
                return ChildOutcome(stage=Stage.BENCHMARK, failure="no result within 1 s")
        return run_child(job, request, *rest)

    monkeypatch.setattr("compiler_worker.proof.proof_job.run_child", cut_short)
    report = build_model(version, ONLY_ORT, with_settings(worker, benchmark_fallback=True))
    assert report.is_success
    assert asked == [True, False]
    (engine,) = worker.registry.engines()
    assert engine.proof.outcome is ProofOutcome.PASSED


def test_without_the_fallback_s_figures_no_engine_is_slow(
    worker: WorkerContext, version: ModelVersion
) -> None:
    build_model(version, ONLY_ORT, worker)
    (engine,) = worker.registry.engines()
    assert engine.proof.fallback == "not timed: SMELT_BENCHMARK_FALLBACK is off"
    assert all(timing.fallback is None for timing in engine.proof.timings)
    device = main_device(worker.devices)
    assert select([engine], device, version=version).engine == engine
    # The same engine, had it been timed as twice as slow.
    timings = tuple(map(twice_as_slow, engine.proof.timings))
    slow = worker.registry.add_proof(
        engine.digest, engine.proof.model_copy(update={"timings": timings})
    )
    selection = select(worker.registry.engines(), device, version=version)
    assert selection.engine is None
    assert selection.fallback_reason is FallbackReason.SLOWER_THAN_FALLBACK
    assert "slower than the fallback: 0.50 x its speed" in engine_line(slow)
    # It is published all the same, and nothing is built again.
    report = build_model(version, ONLY_ORT, worker)
    assert (report.records, report.is_success) == ((), True)


def twice_as_slow(timing: Timing) -> Timing:
    half_s = timing.p50_s / 2
    fallback = SideTiming(p50_s=half_s, p95_s=half_s, throughput=1.0, peak_memory_bytes=1)
    return timing.model_copy(update={"fallback": fallback, "ratio": None})
