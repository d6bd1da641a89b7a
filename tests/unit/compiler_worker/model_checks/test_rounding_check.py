"""What rounding alone does to answers: found when a model is added."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler_worker.builders.graphs import fx_graph
from compiler_worker.model_checks import rounding_check
from compiler_worker.references.models import FxModel
from compiler_worker.references.rounded import RoundedModel
from services.contracts.hardware.kinds import Precision
from services.contracts.model.recipe import Recipe
from tests.faults.judged import normal, record_of, written
from tests.unit.compiler_worker.model_checks.test_verdict_child import (
    MLP,
    WEIGHTS,
    verdict_of,
)

SHIFTED = """g (float[batch, 8] x) => (float[batch, 4] y)
    { h = MatMul (x, w) s = Add (h, by) y = Sub (s, by) }"""
SCALED = """g (float[batch, 8] x) => (float[batch, 4] y)
    { h = MatMul (x, w) s = Mul (h, by) y = Div (s, by) }"""
FORKED = """g (float[batch, 8] x) => (float[batch, 4] y)
    { h = MatMul (x, w) c = Cast <to = 9> (one)
      y = If (c) <then_branch = t () => (float[batch, 4] a) { a = Relu (h) },
                  else_branch = e () => (float[batch, 4] b) { b = Identity (h) }> }"""


def test_what_rounding_hardly_changes_is_not_refused(tmp_path: Path) -> None:
    found = verdict_of(written(tmp_path, MLP, **WEIGHTS))
    assert (found.rounding, found.rounding_untried) == ({}, "")
    assert "rounding" not in found.model_dump(mode="json"), "older releases do not know it"


def test_a_small_difference_of_large_numbers_is_refused(tmp_path: Path) -> None:
    by = np.float32(1000)
    found = verdict_of(written(tmp_path, SHIFTED, w=normal(8, 4), by=by))
    assert found.refuted == ""
    assert set(found.rounding) == {Precision.FP16, Precision.BF16}
    for words in ("output 'y', bucket batch9 at batch=4: rel_l2 ", "found, 2.00e-02 allowed"):
        assert words in found.rounding[Precision.BF16]


def test_what_is_little_beyond_a_bound_may_be_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines round at other places: by 1.2 times the bound the graph is off at its worst."""
    path = written(tmp_path, SHIFTED, w=normal(8, 4), by=np.float32(32))
    assert Precision.BF16 not in verdict_of(path).rounding
    monkeypatch.setattr(rounding_check, "AT_LEAST", 1.0)
    assert Precision.BF16 in verdict_of(path).rounding


def test_what_overflows_is_refused_in_fp16_alone(tmp_path: Path) -> None:
    found = verdict_of(written(tmp_path, SCALED, w=normal(8, 4), by=np.float32(1e5)))
    assert set(found.rounding) == {Precision.FP16}


def test_answers_that_differ_too_little_for_a_proof_are_refused(tmp_path: Path) -> None:
    """Within its bounds, but so would be an engine with a fault."""
    # The last output is off by a twentieth of its own spread.
    graph = MLP.replace("y = MatMul (r, v)", "z = MatMul (r, v) y = Add (z, by)")
    weights = WEIGHTS | {"by": np.array([0, 0, 0, 256], np.float32)}
    found = verdict_of(written(tmp_path, graph, **weights), samples_s=600.0)
    assert "the proof is blind to " in found.rounding[Precision.BF16]


@pytest.mark.parametrize(
    ("by", "refused"), [([1, 1, 1, 1e-33], set()), ([1e-9] * 4, {Precision.FP16})]
)
def test_a_column_that_is_nothing_beside_others_is_no_reason_to_refuse_fp16(
    by: list[float], refused: set[Precision], tmp_path: Path
) -> None:
    """As of MiniLM, whose last norm has weights of 1e-33; bf16 has a number for it, and has to."""
    graph = MLP.replace("y = MatMul (r, v)", "z = MatMul (r, v) y = Mul (z, by)")
    weights = WEIGHTS | {"by": np.array(by, np.float32)}
    assert set(verdict_of(written(tmp_path, graph, **weights)).rounding) == refused


def test_answers_that_are_all_the_same_are_no_matter_of_rounding(tmp_path: Path) -> None:
    """Engines of every precision are refused: which comes first is not changed by it."""
    graph = MLP.replace("y = MatMul (r, v)", "z = MatMul (r, v) s = Sub (z, by) y = Relu (s)")
    by = np.float32(1e6)
    found = verdict_of(written(tmp_path, graph, **WEIGHTS, by=by))
    assert found.rounding == {}
    for precision in (Precision.FP16, Precision.BF16):
        words = f"{precision}: all answers are the same for every sample"
        assert words in found.rounding_untried
    assert "give samples, or a range (inputs: {x: {low: ..., high: ...}})" in found.rounding_untried


def test_precisions_that_the_recipe_leaves_out_are_not_tried(tmp_path: Path) -> None:
    by = np.float32(1000)
    path = written(tmp_path, SHIFTED, w=normal(8, 4), by=by)
    found = verdict_of(path, recipe=Recipe(precisions=(Precision.FP32, Precision.BF16)))
    assert set(found.rounding) == {Precision.BF16}


def test_what_was_not_tried_says_why(tmp_path: Path) -> None:
    none = verdict_of(written(tmp_path, MLP, **WEIGHTS), samples_s=0.0)
    assert none.rounding_untried == "fp16: no time was left; bf16: no time was left"
    forked = verdict_of(written(tmp_path, FORKED, w=normal(8, 4), one=np.float32(1)))
    assert forked.rounding == {}
    assert "control flow cannot be typed bf16" in forked.rounding_untried


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_rounding_in_float32_is_what_kernels_of_halves_give(
    precision: Precision, tmp_path: Path
) -> None:
    path = written(tmp_path, MLP, **WEIGHTS)
    master = record_of(onnx.load(path))
    own = FxModel(fx_graph(path, precision), master, device="cpu", is_double=False)
    inputs = {"x": normal(5, 8)}
    rounded = RoundedModel(path, master, precision).run(inputs)["y"]
    step = 2e-3 if precision is Precision.FP16 else 1e-2
    np.testing.assert_allclose(rounded, own.run(inputs)["y"], rtol=step, atol=step)
    exact = FxModel.open(path, master, device="cpu").run(inputs)["y"]
    assert not np.array_equal(rounded, exact)


def test_rounding_imports_no_compiler(tmp_path: Path) -> None:
    """It is a third of the time in which a small model is added."""
    path = written(tmp_path, MLP, **WEIGHTS)
    (tmp_path / "master.json").write_bytes(record_of(onnx.load(path)).canonical_json())
    code = """
import sys
from pathlib import Path
import numpy as np
from compiler_worker.references.rounded import RoundedModel
from services.contracts.hardware.kinds import Precision
from services.contracts.model.manifest import MasterRecord
path, record = map(Path, sys.argv[1:])
model = RoundedModel(path, MasterRecord.from_json(record.read_bytes()), Precision.BF16)
print(model.run({"x": np.ones((1, 8), np.float32)})["y"].shape, "torch._dynamo" in sys.modules)
"""
    command = [sys.executable, "-c", code, path, tmp_path / "master.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "(1, 4) False\n"
