"""The recipe by which the inputs of a calibrated engine's proof are drawn."""

import numpy as np
import pytest

from compiler_worker.inputs.calibrated_recipe import calibrated_recipe
from compiler_worker.inputs.sampling import SampleVariant, proof_samples
from services.contracts.model.recipe import Bucket, DimRange
from tests.unit.compiler_worker.inputs.sampled import BUCKET, MASTER, RECIPE

FEW = Bucket(dims={**BUCKET.dims, "batch": DimRange(min=1, opt=2, max=3)})
PADDED = [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        pytest.param([1, 1, 0, 0], "right", id="pads behind"),
        pytest.param([1, 1, 1, 1], "right", id="no pads"),
        pytest.param([0, 0, 1, 1], None, id="pads first"),
        pytest.param([1, 0, 1, 0], None, id="a hole"),
    ],
)
def test_masks_are_drawn_as_the_calibration_set_has_them(row: list[int], wanted: str) -> None:
    mask = np.array([*PADDED, row], np.int64)
    found = calibrated_recipe(RECIPE, MASTER, {"ids": mask, "mask": mask})
    assert found.inputs["mask"].padding_side == wanted
    assert found.inputs["ids"] == RECIPE.inputs["ids"]


def test_what_the_recipe_says_of_a_mask_counts_first() -> None:
    either = RECIPE.inputs["mask"].model_copy(update={"padding_side": "either"})
    recipe = RECIPE.model_copy(update={"inputs": {"mask": either}})
    found = calibrated_recipe(recipe, MASTER, {"mask": np.array(PADDED, np.int64)})
    assert found.inputs["mask"] == either
    drawn = {sample.variant for sample in proof_samples(MASTER, found, [FEW])}
    assert SampleVariant.LEFT_PADDED in drawn


def test_no_pads_are_drawn_before_words_where_a_mask_has_them_behind() -> None:
    recipe = calibrated_recipe(RECIPE, MASTER, {"mask": np.array(PADDED, np.int64)})
    for bucket in (BUCKET, FEW):
        samples = proof_samples(MASTER, recipe, [bucket])
        masks = [sample.inputs["mask"] for sample in samples]
        assert SampleVariant.LEFT_PADDED not in {sample.variant for sample in samples}
        assert all((np.diff(mask, axis=1) <= 0).all() for mask in masks)
        assert any(not mask.all() for mask in masks)
