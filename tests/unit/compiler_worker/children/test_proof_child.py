"""The child that proves, run in this process: its verdict, findings and timings."""

import io
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from compiler_worker.children.child import Events
from compiler_worker.children.requests import JointEntrant, JointResult
from compiler_worker.proof import engine_loading, proof_child
from compiler_worker.proof.claim import ProofVerdict
from compiler_worker.proof.proof_child import prove_one
from compiler_worker.references.models import Model
from services.contracts.errors import (
    EngineError,
    EngineIncompatibleError,
    ProofError,
)
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import Proof, ProofOutcome
from services.contracts.model.recipe import Recipe
from services.engines.base import LoadSpec
from services.engines.device.device_probe import probe_device
from services.engines.guarded import library_errors
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from tests.unit.compiler_worker.children.child_requests import KEY, RECIPE, events_of, proof_request


def test_a_proof_compares_times_and_measures(tmp_path: Path, stream: io.StringIO) -> None:
    proof = prove_one(proof_request(tmp_path), Events(stream)).proof
    assert (proof.outcome, proof.reason) == (ProofOutcome.PASSED, "")
    assert proof.device == probe_device()
    assert {check.output for check in proof.checks} == {"hidden", "pooled"}
    (timing,) = proof.timings
    assert timing.sizes == {"batch": 2, "sequence": 4}
    assert timing.throughput == pytest.approx(2 / timing.p50_s)
    assert proof.fallback == "compiled", "of one row, too, where there are two at most"
    counters = {side: by for side, (_, by) in proof.kernels.items()}
    assert counters == {"engine": "ONNX Runtime", "eager": "PyTorch", "fallback": "PyTorch"}
    # Of the fallback products that a library computes, and what Inductor made of the rest.
    num_products = 7
    assert num_products < proof.kernels["fallback"][0] < proof.kernels["eager"][0]
    assert Proof.from_json(proof.canonical_json()) == proof
    assert proof.duration_s > 0
    stages = [event["ended_stage"] for event in events_of(stream) if event["ended_stage"]]
    # The fallback is opened beside other builds, and all are timed alone.
    assert stages == ["prove", "benchmark", "benchmark", "prove"]


def test_an_engine_that_fails_on_a_full_disk_has_no_verdict(
    tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        with library_errors("loading"):
            Path("/dev/full").write_bytes(b"x")

    monkeypatch.setattr(OnnxruntimeEngine, "run", fail)
    with pytest.raises(ProofError, match="no verdict while a disk is full"):
        prove_one(proof_request(tmp_path), Events(stream))


def test_kernels_that_cannot_be_counted_cost_no_proof(
    tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnnxruntimeEngine, "num_kernels", lambda *_: 1 / 0)
    request = proof_request(tmp_path).model_copy(update={"is_fallback_timed": False})
    proof = prove_one(request, Events(stream)).proof
    assert (proof.outcome, set(proof.kernels)) == (ProofOutcome.PASSED, {"eager"})


def test_a_newcomer_is_timed_beside_the_best_engine_so_far(
    tmp_path: Path, stream: io.StringIO
) -> None:
    request = proof_request(tmp_path).model_copy(update={"is_fallback_timed": False})
    best = request.manifest.model_copy(
        update={"key": KEY.model_copy(update={"builder_options": {"is": "another"}})}
    )
    beside = JointEntrant(manifest=best, engine_dir=tmp_path, held_bytes=7)
    found = prove_one(request.model_copy(update={"beside": (beside,)}), Events(stream))
    assert found.timed is not None
    (shape,) = found.timed.shapes
    assert set(shape.engines) == {KEY.digest(), beside.digest}
    assert shape.engines[beside.digest].peak_memory_bytes >= 7
    assert found.proof.timings == (shape.timing(KEY.digest()),)


def test_what_was_proven_before_is_only_timed(
    tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_child, "judge", lambda *_: 1 / 0)
    updates = {"is_fallback_timed": False, "is_judged": False}
    found = prove_one(proof_request(tmp_path).model_copy(update=updates), Events(stream))
    assert found.timed is not None
    assert [set(shape.engines) for shape in found.timed.shapes] == [{KEY.digest()}]
    assert found.proof.outcome is ProofOutcome.NOT_RUN, "no one may take it for a proof"


def test_one_that_does_not_run_beside_it_leaves_the_proof_as_it_is(
    tmp_path: Path, stream: io.StringIO
) -> None:
    request = proof_request(tmp_path).model_copy(update={"is_fallback_timed": False})
    foreign = request.manifest.model_copy(
        update={"key": KEY.model_copy(update={"toolchain": {"onnxruntime": "0.1"}})}
    )
    beside = JointEntrant(manifest=foreign, engine_dir=tmp_path, held_bytes=0)
    found = prove_one(request.model_copy(update={"beside": (beside,)}), Events(stream))
    assert found.timed is not None
    assert "does not run together with the others" in found.timed.failed[beside.digest]
    assert (found.proof.outcome, len(found.proof.timings)) == (ProofOutcome.PASSED, 1)


class Tiring:
    """An engine whose answers are zeros once it was timed."""

    def __init__(self, engine: Model) -> None:
        self._engine, self._is_tired = engine, False

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        answer = self._engine.run(inputs)
        return {n: a * 0 for n, a in answer.items()} if self._is_tired else answer

    def time_engines(self, *_: object) -> JointResult:
        self._is_tired = True
        return JointResult(shapes=(), failed={}, fallback="", kernels={})

    def close(self) -> None:
        """Nothing is held."""


def test_an_engine_that_changes_its_answers_after_many_runs_is_not_proven(
    tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is compared comes before what is timed, and that runs far more often."""
    request = proof_request(tmp_path).model_copy(update={"is_fallback_timed": False})
    engine = Tiring(engine_loading.load_engine(request, []))
    monkeypatch.setattr(proof_child, "load_engine", lambda *_: engine)
    monkeypatch.setattr(proof_child, "time_engines", engine.time_engines)
    proof = prove_one(request, Events(stream)).proof
    assert proof.outcome is ProofOutcome.FAILED
    assert "after many runs, output 'hidden'" in proof.reason


def test_each_engine_has_a_seed_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims: list[Any] = []
    judged = ProofVerdict(reason="enough")
    monkeypatch.setattr(proof_child, "drawn_recipe", lambda _: Recipe())
    monkeypatch.setattr(proof_child, "judge", lambda *given: claims.append(given[2]) or judged)
    for key in (KEY, KEY.model_copy(update={"builder_options": {"a": "1"}})):
        request = proof_request(tmp_path, key).model_copy(update={"is_fallback_timed": False})
        prove_one(request, Events(io.StringIO()))
    assert len({claim.seed for claim in claims} - {None}) == 2
    assert [claim.recipe for claim in claims] == [Recipe(), Recipe()]  # not the owner's


def test_an_engine_that_does_not_load_fails_its_proof(tmp_path: Path, stream: io.StringIO) -> None:
    request = proof_request(tmp_path)
    request.master_path.write_bytes(b"no onnx")
    proof = prove_one(request, Events(stream)).proof
    assert proof.outcome is ProofOutcome.FAILED
    assert "the engine failed: ONNX Runtime failed to load" in proof.reason
    assert proof.timings == ()


def test_an_engine_for_another_library_gets_no_proof_here(
    tmp_path: Path, stream: io.StringIO
) -> None:
    """It may be proven where that library is: what is missing here says nothing about it."""
    foreign = KEY.model_copy(update={"toolchain": {"onnxruntime": "0.1"}})
    with pytest.raises(EngineIncompatibleError, match=r"onnxruntime 0\.1"):
        prove_one(proof_request(tmp_path, foreign), Events(stream))


def test_a_task_without_samples_fails_with_the_way_out(tmp_path: Path, stream: io.StringIO) -> None:
    recipe = RECIPE.model_validate(
        {**RECIPE.model_dump(), "ranking": {"output": "pooled", "top_k": 3}}
    )
    request = proof_request(tmp_path).model_copy(update={"recipe": recipe})
    proof = prove_one(request, Events(stream)).proof
    assert proof.outcome is ProofOutcome.FAILED
    assert "add the model with --samples FILE.npz, or remove 'ranking'" in proof.reason


class WarningLoader:
    """An engine class of a library that warns, and loads nothing where a test says so."""

    fault: ClassVar[Exception | None] = None

    @classmethod
    def load(cls, spec: LoadSpec) -> None:
        logging.getLogger("some.library").warning("profile %d is slow", 3)
        logging.getLogger("some.library").info("chatter")
        warnings.warn("deprecated plan", UserWarning, stacklevel=1)
        if cls.fault:
            raise cls.fault


@pytest.fixture
def warning_loader(monkeypatch: pytest.MonkeyPatch) -> type[WarningLoader]:
    monkeypatch.setattr(engine_loading, "engine_class", lambda kind: WarningLoader)
    monkeypatch.setattr(WarningLoader, "fault", None)
    return WarningLoader


def test_what_libraries_warn_of_while_loading_becomes_a_finding(
    tmp_path: Path, warning_loader: type[WarningLoader]
) -> None:
    findings: list[str] = []
    engine_loading.load_engine(proof_request(tmp_path), findings)
    logging.getLogger("some.library").warning("afterwards")
    assert findings == ["profile 3 is slow", "deprecated plan"]


def test_a_proof_tells_what_builder_and_loader_warned_of(
    tmp_path: Path, stream: io.StringIO, warning_loader: type[WarningLoader]
) -> None:
    warning_loader.fault = EngineError("damaged")
    request = proof_request(tmp_path)
    warned = {"findings": ("the parser casts INT64 down",)}
    request = request.model_copy(update={"manifest": request.manifest.model_copy(update=warned)})
    proof = prove_one(request, Events(stream)).proof
    assert proof.reason == "the engine failed: damaged"
    assert proof.findings == ("the parser casts INT64 down", "profile 3 is slow")
