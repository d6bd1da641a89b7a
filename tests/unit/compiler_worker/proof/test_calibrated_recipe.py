"""Calibrated engines are drawn values of the size that their scales were taken from."""

from pathlib import Path

import numpy as np
import pytest

from compiler_worker.children.requests import ProofRequest
from compiler_worker.proof.proof_child import drawn_recipe
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import BlobRef, MasterRecord
from services.contracts.model.recipe import InputRecipe, Recipe

NAMES = {"x": "FP32", "narrowed": "FP32", "still": "FP32", "ids": "INT64"}
MASTER = MasterRecord(
    digest="a" * 64,
    files={"model.onnx": BlobRef(sha256="b" * 64, num_bytes=1)},
    inputs=tuple(TensorSpec(name=n, datatype=d, shape=("batch", 4)) for n, d in NAMES.items()),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=("batch", 4)),),
    opset=20,
    num_parameters=1,
)
RECIPE = Recipe(inputs={"narrowed": InputRecipe(low=0, high=1)})


def drawn(calibration: Path | None) -> Recipe:
    return drawn_recipe(
        ProofRequest.model_construct(recipe=RECIPE, master=MASTER, calibration_path=calibration)
    )


def test_floats_that_the_recipe_leaves_open_have_mean_and_spread_of_the_set(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(40, 3, (500, 4)).astype(np.float32)
    path = tmp_path / "set.npz"
    still, ids = np.zeros((500, 4), np.float32), np.ones((500, 4), np.int64)
    np.savez(path, x=values, narrowed=values, still=still, ids=ids)
    found = drawn(path).inputs
    assert found.keys() == {"x", "narrowed"}
    assert found["narrowed"] == RECIPE.inputs["narrowed"]
    low, high = found["x"].low, found["x"].high
    assert high is not None
    assert (low + high) / 2 == pytest.approx(values.mean(), rel=1e-3)
    assert (high - low) / 12**0.5 == pytest.approx(values.std(), rel=1e-3)


def test_without_a_set_the_recipe_is_the_owners() -> None:
    assert drawn(None) is RECIPE
