"""Where importer and ONNX Runtime differ, a third says who is wrong; only they bear it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compiler_worker.onnx_to_fx.converter_table import CONVERTERS
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import Tensor
from compiler_worker.proof.claim import ProofVerdict
from compiler_worker.references.models import EvaluatorModel, Model
from services.contracts.errors import ProofError
from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Bucket, DimRange
from tests.faults.judged import BATCH, Altered, Answer, Subject, normal, written

GRAPH = """g (float[batch, 8] x) => (float[batch, 4] y) {
    h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, v) }"""
WEIGHTS = {"w": normal(8, 16), "v": normal(16, 4)}
OTHERS = [EngineKind.ONNXRUNTIME, EngineKind.OPENVINO, EngineKind.TENSORRT]


@pytest.fixture
def wrong_importer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relu is imported as if it did nothing."""
    rows = [replace(row, convert=lambda op: op.tensor(0)) for row in CONVERTERS["", "Relu"]]
    monkeypatch.setitem(CONVERTERS, ("", "Relu"), rows)


def subject_of(folder: Path, kind: EngineKind) -> Subject:
    return Subject.opened(folder, written(folder, GRAPH, **WEIGHTS), kind)


@pytest.mark.usefixtures("wrong_importer")
class TestWrongImporter:
    @pytest.mark.parametrize("kind", OTHERS)
    def test_engines_that_it_did_not_make_are_proven_without_it(
        self, kind: EngineKind, tmp_path: Path
    ) -> None:
        subject = subject_of(tmp_path, kind)
        verdict = subject.judged(subject.engine)
        assert verdict.reason == ""
        library = "onnx.reference" if kind is EngineKind.ONNXRUNTIME else "onnxruntime"
        assert re.match(
            rf"{library} \S+ fp64; no float64 import: the importer is wrong: output 'y' at",
            verdict.reference,
        )
        assert max(check.rel_l2 for check in verdict.checks) < 1e-6

    def test_what_onnxruntime_computes_in_float32_alone_is_compared_so(
        self, tmp_path: Path
    ) -> None:
        graph = GRAPH.replace("r = Relu (h)", "e = Erf (h)  r = Relu (e)")
        path = written(tmp_path, graph, **WEIGHTS)
        subject = Subject.opened(tmp_path, path, EngineKind.OPENVINO)
        verdict = subject.judged(subject.engine)
        assert verdict.reason == ""
        assert re.match(r"onnxruntime \S+ fp32; no float64 import", verdict.reference)

    @pytest.mark.parametrize("kind", OTHERS)
    def test_engines_that_are_wrong_as_it_is_are_refused(
        self, kind: EngineKind, tmp_path: Path
    ) -> None:
        subject = subject_of(tmp_path, kind)
        wrong = subject.engine_of(GRAPH.replace("Relu", "Identity"), **WEIGHTS)
        assert "output 'y'" in subject.judged(wrong).reason

    def test_ids_are_no_ties_by_what_it_makes_of_their_values(self, tmp_path: Path) -> None:
        graph = """g (float[batch, 8] x) => (int64[batch] ids) {
            h = MatMul (x, w)  r = Relu (h)  scores = Sub (r, h)
            best = ArgMax <axis = 1, keepdims = 0> (scores)  ids = Identity (best) }"""
        path = written(tmp_path, graph, w=WEIGHTS["w"])
        subject = Subject.opened(tmp_path, path, EngineKind.OPENVINO)

        def name_the_next(answer: Answer, inputs: Mapping[str, Array]) -> None:
            answer["ids"] = (answer["ids"] + 1) % 16

        assert subject.judged(subject.engine).reason == ""
        assert "output 'ids'" in subject.judged(Altered(subject.engine, name_the_next)).reason

    def test_engines_that_it_made_are_refused_with_the_place(self, tmp_path: Path) -> None:
        subject = subject_of(tmp_path, EngineKind.INDUCTOR)
        wanted = (
            "the importer is wrong: output 'y' at .*: rel_l2 .* found, .* allowed.*, between its "
            "graph and onnxruntime .*, with which onnx.reference .* agrees; first after Relu node "
            "'r': rel_l2 .*; this engine is made of the same import"
        )
        with pytest.raises(ProofError, match=wanted):
            subject.judged(subject.engine)


@pytest.fixture
def failing_importer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relu is imported so that it takes even batches alone."""

    def pairs(op: Op) -> Tensor:
        x = op.tensor(0)
        pairs_p2w = op.call(torch.reshape, x, [-1, 2, 16])
        return x.like(op.call(torch.reshape, op.call(torch.relu, pairs_p2w), [-1, 16]))

    rows = [replace(row, convert=pairs) for row in CONVERTERS["", "Relu"]]
    monkeypatch.setitem(CONVERTERS, ("", "Relu"), rows)


EVEN_EDGES = Bucket(dims={"batch": DimRange(min=2, opt=4, max=8)})


@pytest.mark.usefixtures("failing_importer")
@pytest.mark.parametrize("bucket", [EVEN_EDGES, BATCH])
class TestFailingImporter:
    """Inside of a bucket, and at its edges."""

    def test_others_are_compared_at_all_sizes_without_it(
        self, bucket: Bucket, tmp_path: Path
    ) -> None:
        subject = subject_of(tmp_path, EngineKind.OPENVINO)
        verdict = subject.judged(subject.engine, buckets=(bucket,))
        assert verdict.reason == ""
        assert re.search(r"no float64 import: the import fails, .* batch=", verdict.reference)
        assert {check.sizes["batch"] % 2 for check in verdict.checks} == {0, 1}

    def test_engines_that_it_made_are_refused(self, bucket: Bucket, tmp_path: Path) -> None:
        subject = subject_of(tmp_path, EngineKind.INDUCTOR)
        with pytest.raises(ProofError, match="where onnxruntime .* answers: .* the same import"):
            subject.judged(subject.engine, buckets=(bucket,))


def test_a_model_that_answers_no_number_is_named_once(tmp_path: Path) -> None:
    graph = GRAPH.replace("y = MatMul (r, v)", "n = MatMul (r, v)  z = Sub (n, n)  y = Div (n, z)")
    path = written(tmp_path, graph.replace("r = Relu (h)", "r = Sub (h, h)"), **WEIGHTS)
    subject = Subject.opened(tmp_path, path, EngineKind.OPENVINO)
    with pytest.raises(ProofError, match=r"onnx.reference \S+ fp\d+ answers the same") as raised:
        subject.judged(subject.engine)
    assert str(raised.value).count("NaN or Inf everywhere") == 1


def louder(answer: Answer, inputs: Mapping[str, Array]) -> None:
    answer["y"] = answer["y"] * np.float32(1.01)


def judged_beside(
    folder: Path, witness: Model, engine: Model, third: Callable[[], Any] | None = None
) -> ProofVerdict:
    subject = Subject.of(folder, GRAPH, **WEIGHTS)
    tie_breaker = subject.reference.tie_breaker
    assert tie_breaker is not None
    if third is not None:
        tie_breaker = replace(tie_breaker, open_third=third)
    reference = replace(subject.reference, witness=witness, tie_breaker=tie_breaker)
    return replace(subject, reference=reference).judged(engine)


class TestWrongWitness:
    def test_it_is_one_no_longer(self, tmp_path: Path) -> None:
        subject = Subject.of(tmp_path, GRAPH, **WEIGHTS)
        lying = Altered(subject.engine, louder)
        right, wrong = (judged_beside(tmp_path, lying, e) for e in (subject.engine, lying))
        assert right.reason == ""
        assert "fp32 is wrong: output 'y'" in right.reference
        assert "output 'y'" in wrong.reason

    def test_a_third_that_cannot_run_says_so(self, tmp_path: Path) -> None:
        def refuses() -> EvaluatorModel:
            raise ProofError("onnx.reference refuses the master: no such op")

        subject = Subject.of(tmp_path, GRAPH, **WEIGHTS)
        lying = Altered(subject.engine, louder)
        with pytest.raises(
            ProofError, match=r"differs in output 'y'.* tie-breaker unavailable: .*such op"
        ):
            judged_beside(tmp_path, lying, subject.engine, refuses)

    def test_a_third_that_sides_with_nobody_proves_nothing(self, tmp_path: Path) -> None:
        subject = Subject.of(tmp_path, GRAPH, **WEIGHTS)
        lying = Altered(subject.engine, louder)
        odd = Altered(lying, louder)
        with pytest.raises(ProofError, match=r"is inconclusive: rel_l2 .* from the import"):
            judged_beside(tmp_path, lying, subject.engine, lambda: odd)

    def test_a_third_has_to_agree_at_all_samples(self, tmp_path: Path) -> None:
        subject = Subject.of(tmp_path, GRAPH, **WEIGHTS)
        right, num_runs = subject.engine, count()

        def louder_later(answer: Answer, inputs: Mapping[str, Array]) -> None:
            if next(num_runs):
                louder(answer, inputs)

        third = Altered(right, louder_later)
        with pytest.raises(ProofError, match="check failed.*witness differs in output 'y'"):
            judged_beside(tmp_path, Altered(right, louder), right, lambda: third)


SEGMENTATION = """g (float[batch, 16, 8] x) => (int64[batch, 16] y) {
    h = MatMul (x, w)  y = ArgMax <axis = -1, keepdims = 0> (h) }"""


class FewTies:
    """An implementation that takes another class where two are as good: here once for each run."""

    def __init__(self, model: Model, num_ties: int) -> None:
        self._model, self._num_ties = model, num_ties

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """The model's answer with a few other ids."""
        ids = self._model.run(inputs)["y"].copy()
        ids.flat[: self._num_ties] = (ids.flat[: self._num_ties] + 1) % 4
        return {"y": ids}


@pytest.mark.parametrize("num_ties", [1, 2])
def test_ties_among_many_ids_are_nobodys_fault(num_ties: int, tmp_path: Path) -> None:
    batch = Bucket(dims={"batch": DimRange(min=64, opt=64, max=64)})
    path = written(tmp_path, SEGMENTATION, w=normal(8, 4))
    subject = Subject.opened(tmp_path, path, EngineKind.INDUCTOR)
    imported = FewTies(subject.reference.model, num_ties)
    subject = replace(subject, reference=replace(subject.reference, model=imported))
    if num_ties == 1:
        assert subject.judged(subject.engine, buckets=(batch,)).reason == ""
        return
    with pytest.raises(ProofError, match="the importer is wrong: .* 2 of 1024 elements differ"):
        subject.judged(subject.engine, buckets=(batch,))
