"""Kept answers: what comes back from the file, and which answers are refused."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import OutputRecipe, Recipe, Tolerance
from services.contracts.store.kept_answers import KeptAnswer, fault_of, read_answers, write_answers
from tests.conformance.tiny_model import master_record

FLOATS = TensorSpec(name="y", datatype="FP32", shape=("batch", 3))
IDS = TensorSpec(name="ids", datatype="INT64", shape=("batch",))
BOUND = Tolerance(rel_l2=1e-3, max_abs=1e-3, cosine_distance=1e-3, agreement=0.9)
WANTED = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def fault(found: Array, wanted: Array = WANTED, recipe: Recipe | None = None) -> str:
    spec = IDS if wanted.dtype.kind == "i" else FLOATS
    inputs = {"mask": np.array([1, 0])}
    kept = KeptAnswer(inputs=inputs, outputs={spec.name: wanted})
    allowed = {spec.name: BOUND}
    return fault_of({spec.name: found}, kept, [spec], recipe or Recipe(), allowed)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (WANTED * np.float32(1.0005), ""),
        (WANTED * np.float32(1.01), "rel_l2 1.00e-02 found, 1.00e-03 allowed; max_abs"),
        (np.where(WANTED > 5, np.nan, WANTED).astype(np.float32), "1 NaN or Inf values found"),
        (WANTED[:1], r"FP32 [1, 3] found, FP32 [2, 3] wanted"),
        (WANTED.astype(np.float64), r"FP64 [2, 3] found, FP32 [2, 3] wanted"),
        (np.zeros_like(WANTED), "rel_l2 1.00e+00 found"),
    ],
)
def test_floats(found: Array, told: str) -> None:
    words = fault(found)
    assert told in words
    assert bool(words) == bool(told)
    assert not words or words.startswith("output 'y' at {'mask': [2]}: ")


def test_what_the_witness_has_no_number_for_is_the_same_elsewhere() -> None:
    wanted = np.array([[np.nan, np.inf, 1]], np.float32)
    assert fault(wanted.copy(), wanted) == ""
    assert "2 NaN or Inf" in fault(np.array([[0, -np.inf, 1]], np.float32), wanted)


def test_zeros_and_nothing_have_distances_too() -> None:
    zeros = np.zeros((2, 3), np.float32)
    assert fault(zeros, zeros) == ""
    assert "rel_l2" in fault(zeros + 1, zeros)
    assert fault(zeros[:0], zeros[:0]) == ""


def test_integers_agree_by_their_share() -> None:
    wanted = np.arange(20)
    assert fault(np.where(wanted < 2, 99, wanted), wanted) == ""
    words = fault(np.where(wanted < 3, 99, wanted), wanted)
    assert "3 of 20 elements differ: agreement 0.8500 found, 0.9000 wanted" in words


def test_positions_that_do_not_count_are_left_out() -> None:
    recipe = Recipe(outputs={"y": OutputRecipe(valid_where="mask")})
    found = WANTED.copy()
    found[1] = 77
    assert fault(found, recipe=recipe) == ""
    assert "rel_l2" in fault(found)
    found[0] = 77
    assert "rel_l2" in fault(found, recipe=recipe)


def test_types_that_files_do_not_know_come_back(tmp_path: Path) -> None:
    spec = TensorSpec(name="x", datatype="BF16", shape=("batch",))
    x = np.array([1.5, -2], ml_dtypes.bfloat16)
    master = master_record().model_copy(update={"inputs": (spec,), "outputs": (FLOATS,)})
    answers = [KeptAnswer(inputs={"x": x + i}, outputs={"y": WANTED + i}) for i in range(2)]
    write_answers(tmp_path / "a.npz", answers)
    for kept, read in zip(answers, read_answers(tmp_path / "a.npz", master), strict=True):
        assert read.inputs["x"].dtype == x.dtype
        np.testing.assert_array_equal(read.inputs["x"], kept.inputs["x"])
        np.testing.assert_array_equal(read.outputs["y"], kept.outputs["y"])
