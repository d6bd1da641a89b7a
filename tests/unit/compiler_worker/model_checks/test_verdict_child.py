"""What is found of an import: right ones, wrong ones, and those that nothing can be said of."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import psutil
import pytest

from compiler_worker.children.child import Events
from compiler_worker.children.requests import VerdictRequest
from compiler_worker.measures.default_tolerances import DEFAULT_TOLERANCES
from compiler_worker.model_checks.import_verdict import judge_import
from compiler_worker.model_checks.verdict_child import ANSWERS_FILE, verdict_one
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.onnx_to_fx.converter_table import CONVERTERS, Convert, Result
from compiler_worker.settings import CompilerSettings
from services.contracts.hardware.kinds import Precision
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.contracts.selection.fallback_verdict import FallbackVerdict
from services.contracts.store.kept_answers import read_answers
from services.engines.fallback.fallback_program import importer_code
from tests.conformance.trees import classifier
from tests.faults.judged import normal, record_of, written
from tests.faults.saboteurs.models_of_tables import quantised

MLP = """g (float[batch, 8] x) => (float[batch, 4] y)
    { h = MatMul (x, w) r = Relu (h) y = MatMul (r, v) }"""
WEIGHTS = {"w": normal(8, 16), "v": normal(16, 4)}
BUCKET = Bucket(dims={"batch": DimRange(min=1, opt=4, max=9)})


def request_of(path: Path, samples_s: float = 60.0) -> VerdictRequest:
    return VerdictRequest(
        master_path=path,
        master=record_of(onnx.load(path)),
        recipe=Recipe(),
        buckets=(BUCKET,),
        folder=path.parent,
        samples_s=samples_s,
        num_threads=1,
    )


def verdict_of(
    path: Path,
    samples_s: float = 60.0,
    recipe: Recipe = Recipe(),  # noqa: B008
) -> FallbackVerdict:
    request = request_of(path, samples_s).model_copy(update={"recipe": recipe})
    return verdict_one(request, Events(io.StringIO()))


@pytest.fixture
def changed_relu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Convert], Convert]], None]:
    """Has the importer translate Relu otherwise, given how it does."""

    def change(to: Callable[[Convert], Convert]) -> None:
        rows = CONVERTERS["", "Relu"]
        wrong = [replace(row, convert=to(row.convert)) for row in rows]
        monkeypatch.setitem(CONVERTERS, ("", "Relu"), wrong)

    # The converters are registered by the first import.
    assert graph_module_from_onnx
    return change


def test_a_right_import_and_the_answers_that_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path, MLP, **WEIGHTS)
    found = verdict_of(path)
    assert (found.refuted, found.unknown) == ("", "")
    assert found.num_samples > 4
    assert found.witness == f"onnxruntime {onnxruntime.__version__} fp32"
    assert f"agrees with {found.witness} at {found.num_samples} samples" in found.words
    kept = read_answers(tmp_path / ANSWERS_FILE, record_of(onnx.load(path)))
    assert max(len(answer.inputs["x"]) for answer in kept) == BUCKET.dims["batch"].max
    for answer in kept:
        hidden = np.maximum(answer.inputs["x"] @ WEIGHTS["w"], 0)
        np.testing.assert_allclose(answer.outputs["y"], hidden @ WEIGHTS["v"], rtol=1e-4, atol=1e-5)
    assert 1e-5 < found.allowed["y"].rel_l2 < 1e-3


def test_a_wrong_import_is_refuted_and_the_right_answers_are_kept(
    tmp_path: Path, changed_relu: Callable[[Callable[[Convert], Convert]], None]
) -> None:
    def leaky(convert: Convert) -> Convert:
        def converted(op: object) -> Result:
            return op.inputs[0]  # type: ignore[attr-defined, no-any-return]

        return converted

    changed_relu(leaky)
    path = written(tmp_path, MLP, **WEIGHTS)
    found = verdict_of(path)
    assert "output 'y', bucket batch9 at batch=" in found.refuted
    assert "rel_l2 " in found.refuted
    assert "found, 1.00e-05 allowed" in found.refuted
    assert "ONNX Runtime serves in its place" in found.words
    kept = read_answers(tmp_path / ANSWERS_FILE, record_of(onnx.load(path)))
    hidden = np.maximum(kept[0].inputs["x"] @ WEIGHTS["w"], 0)
    np.testing.assert_allclose(kept[0].outputs["y"], hidden @ WEIGHTS["v"], rtol=1e-4, atol=1e-5)


def test_where_onnxruntime_is_wrong_the_evaluator_is_asked(tmp_path: Path) -> None:
    # Below -18 ONNX Runtime's sigmoid is 0, whose logarithm is no number.
    path = written(
        tmp_path,
        """g (float[batch, 8] x) => (float[batch, 4] y)
        { h = MatMul (x, w) s = Sigmoid (h) y = Log (s) }""",
        w=normal(8, 4) * np.float32(0.7),
    )
    found = verdict_of(path)
    assert (found.refuted, found.unknown) == ("", "")
    assert found.witness.startswith("onnx.reference")
    kept = read_answers(tmp_path / ANSWERS_FILE, record_of(onnx.load(path)))
    assert all(np.isfinite(answer.outputs["y"]).all() for answer in kept)


def test_without_time_a_small_and_a_middle_sample_are_compared(tmp_path: Path) -> None:
    found = verdict_of(written(tmp_path, MLP, **WEIGHTS), samples_s=0.0)
    assert (found.refuted, found.num_samples) == ("", 2)
    kept = read_answers(tmp_path / ANSWERS_FILE, record_of(onnx.load(tmp_path / "model.onnx")))
    assert sorted(len(answer.inputs["x"]) > 1 for answer in kept) == [False, True]


def test_what_the_importer_refuses_is_served_by_onnxruntime(tmp_path: Path) -> None:
    graph = """g (float[batch, 4] x) => (float[batch, 4] y)
        { r = RandomUniformLike <low = 1.0, high = 1.0> (x) y = Mul (x, r) }"""
    found = verdict_of(written(tmp_path, graph))
    assert "the importer refuses the graph: RandomUniformLike" in found.refused
    assert "ONNX Runtime serves until an engine is proven" in found.words
    assert not (tmp_path / ANSWERS_FILE).exists()


@pytest.mark.parametrize("is_of_strings", [False, True])
def test_a_model_that_no_fallback_serves_is_named_so(tmp_path: Path, is_of_strings: bool) -> None:
    """The importer has no random numbers and no strings, and ONNX Runtime no Elu of doubles."""
    more = "string[batch] s, " if is_of_strings else ""
    path = tmp_path / "model.onnx"
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 20]> '
            f"g ({more}float[batch, 4] x) => (float[batch, 4] y, double[batch, 4] z) {{"
            "r = RandomUniformLike <low = 1.0, high = 1.0> (x) y = Mul (x, r) "
            "d = Cast <to = 11> (x) z = Elu (d) }"
        ),
        path,
    )
    opened = path, record_of(onnx.load(path))
    settings = CompilerSettings(verdict_time_limit_s=600, num_threads=1)
    judged = judge_import(opened, Recipe(), (BUCKET,), tmp_path / "v", settings, str)
    assert judged is not None
    why = "is strings (BYTES)" if is_of_strings else "the importer refuses the graph: RandomUniform"
    for words in (why, "ONNX Runtime refuses the master", "no fallback can serve this model"):
        assert words in judged.verdict.words


def test_what_torch_has_not_is_served_by_onnxruntime_at_once(tmp_path: Path) -> None:
    onnx.save(classifier(), tmp_path / "m.onnx")
    found = verdict_of(tmp_path / "m.onnx")
    assert "ai.onnx.ml::TreeEnsembleClassifier" in found.refused
    assert found.refutes(importer_code())
    assert not found.refutes("of a release that has them")
    assert found.words.startswith("ONNX Runtime serves until an engine is proven, as torch cannot")


def test_an_output_without_numbers_says_nothing(tmp_path: Path) -> None:
    graph = "g (float[batch, 4] x) => (float[batch, 4] y) { y = Div (x, zero) }"
    graph = graph.replace("y = Div (x, zero)", "d = Mul (x, zero) y = Div (d, d)")
    found = verdict_of(written(tmp_path, graph, zero=np.float32(0)))
    assert "answers none of the samples with numbers" in found.unknown


def test_a_deadline_ends_the_child_and_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, MLP, **WEIGHTS)
    opened = path, record_of(onnx.load(path))
    told: list[str] = []
    settings = CompilerSettings(verdict_time_limit_s=0.01)
    judged = judge_import(opened, Recipe(), (BUCKET,), tmp_path / "v", settings, told.append)
    assert judged is not None
    assert "raise SMELT_VERDICT_TIME_LIMIT_S" in judged.verdict.unknown
    assert judged.answers is None
    none = CompilerSettings(verdict_time_limit_s=0)
    assert judge_import(opened, Recipe(), (BUCKET,), tmp_path / "n", none, told.append) is None


@pytest.mark.parametrize("written_before", [None, b"PK\x03\x04"])
def test_a_child_that_is_killed_leaves_what_can_be_done_and_no_answers(
    tmp_path: Path, written_before: bytes | None
) -> None:
    """A replica could not read a part of them, and has no bounds for all without the verdict."""
    path = written(tmp_path, MLP, **WEIGHTS)
    before = set(psutil.Process().children())

    def kill(line: str) -> None:
        if written_before:
            (tmp_path / "v" / ANSWERS_FILE).write_bytes(written_before)
        for child in set(psutil.Process().children()) - before:
            child.kill()

    settings = CompilerSettings(verdict_time_limit_s=600, num_threads=1)
    opened = path, record_of(onnx.load(path))
    judged = judge_import(opened, Recipe(), (BUCKET,), tmp_path / "v", settings, kill)
    assert judged is not None
    killed = "was ended by SIGKILL in stage 'prove', as the kernel does where a host"
    for words in (killed, "smelt models remove NAME --version N", "add the model again"):
        assert words in judged.verdict.unknown
    assert judged.answers is None


def test_an_error_of_the_comparison_itself_is_no_want_of_memory(tmp_path: Path) -> None:
    opened = tmp_path / "gone.onnx", record_of(onnx.load(written(tmp_path, MLP, **WEIGHTS)))
    settings = CompilerSettings(verdict_time_limit_s=600, num_threads=1)
    judged = judge_import(opened, Recipe(), (BUCKET,), tmp_path / "v", settings, print)
    assert judged is not None
    assert judged.verdict.unknown.endswith("; the fallback serves without that comparison")


def test_a_child_hands_back_the_verdict_and_the_answers(tmp_path: Path) -> None:
    path = written(tmp_path, MLP, **WEIGHTS)
    opened = path, record_of(onnx.load(path))
    told: list[str] = []
    settings = CompilerSettings(verdict_time_limit_s=600, num_threads=1)
    judged = judge_import(opened, Recipe(), (BUCKET,), tmp_path / "v", settings, told.append)
    assert judged is not None
    assert (judged.verdict.refuted, judged.verdict.unknown) == ("", "")
    assert judged.answers is not None
    assert judged.answers.stat().st_size < 2**16
    begun = "the fallback's graph beside ONNX Runtime: "
    assert any(re.search(rf"^{begun}\S+ at \w+=\d", line) for line in told)


def test_a_device_may_round_otherwise_where_the_master_itself_rounds(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(quantised(0), path)
    found = verdict_of(path)
    assert found.refuted == ""
    assert found.allowed["y"].rel_l2 > DEFAULT_TOLERANCES[Precision.FP16].rel_l2, "of a step"
