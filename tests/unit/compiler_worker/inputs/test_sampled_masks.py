"""Masks of proof inputs: ragged, full, padded on either side."""

import numpy as np
import pytest

from compiler_worker.inputs.sampling import (
    SampleVariant,
    proof_samples,
)
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe
from tests.unit.compiler_worker.inputs.sampled import BUCKET, MASTER, RECIPE, variants_at


def test_masks_are_ragged_from_shortest_to_full_and_padded_on_either_side() -> None:
    samples = proof_samples(MASTER, RECIPE, [BUCKET])
    assert len(samples) == 9 + 3 + 3 + 1, "a single row is drawn twice, and the usual sizes"
    usual = variants_at(samples, batch=4, sequence=16)[SampleVariant.FULL]
    assert usual.inputs["mask"].all()
    largest = variants_at(samples, batch=8, sequence=32)[SampleVariant.RAGGED].inputs["mask"]
    lengths = largest.sum(axis=1)
    assert (lengths.min(), lengths.max()) == (1, 32)
    assert len(set(lengths.tolist())) > 2
    assert (np.diff(largest[::4], axis=1) <= 0).all(), "valid positions come first"
    turns = np.abs(np.diff(largest[2::4], axis=1)).sum(axis=1)
    assert (turns > 1).any(), "valid positions have invalid ones between them"
    assert (np.diff(largest[1::2], axis=1) >= 0).all(), "valid positions come last"
    assert not largest[3::2].all(axis=1).any()
    assert all(sample.inputs["mask"].any(axis=1).all() for sample in samples)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_are_left_padded_in_a_draw_of_their_own(rows: int) -> None:
    few = DimRange(min=rows, opt=rows, max=rows)
    samples = proof_samples(MASTER, RECIPE, [Bucket(dims={**BUCKET.dims, "batch": few})])
    padded = [s for s in samples if s.variant is SampleVariant.LEFT_PADDED]
    assert {tuple(sample.sizes.values()) for sample in padded} == {(rows, 16), (rows, 32)}
    for sample in padded:
        assert (np.diff(sample.inputs["mask"], axis=1) >= 0).all(), "valid positions come last"
        assert not sample.inputs["mask"].all()
    for sample in (s for s in samples if s.variant is SampleVariant.RAGGED):
        assert (np.diff(sample.inputs["mask"], axis=1) <= 0).all(), "valid positions come first"


def test_a_batch_of_one_is_ragged_too() -> None:
    lengths = {
        int(sample.inputs["mask"].sum())
        for sample in proof_samples(MASTER, RECIPE, [BUCKET])
        if sample.sizes == {"batch": 1, "sequence": 32}
    }
    assert len(lengths) == 2
    assert max(lengths) == 32


def test_a_mask_of_one_position_is_drawn_once() -> None:
    dims = {**BUCKET.dims, "sequence": DimRange(min=1, opt=1, max=1)}
    samples = proof_samples(MASTER, RECIPE, [Bucket(dims=dims)])
    sizes = sorted(sample.sizes["batch"] for sample in samples)
    assert sizes == sorted({1, 4, 8, 7} | set(sizes))
    assert all(sample.inputs["mask"].all() for sample in samples)


def test_one_of_two_masks_may_be_empty() -> None:
    spec = MASTER.inputs[1]
    masks = tuple(
        spec.model_copy(update={"name": name, "shape": ("batch", name)}) for name in ("q", "d")
    )
    recipe = Recipe(inputs={name: InputRecipe(role=InputRole.MASK) for name in ("q", "d")})
    dims = {
        "batch": BUCKET.dims["batch"],
        "q": DimRange(min=0, opt=2, max=4),
        "d": BUCKET.dims["sequence"],
    }
    master = MASTER.model_copy(update={"inputs": masks})
    for sample in proof_samples(master, recipe, [Bucket(dims=dims)]):
        assert sample.inputs["q"].shape == (sample.sizes["batch"], sample.sizes["q"])
        assert sample.inputs["d"].any(axis=1).all()


def test_without_a_mask_each_edge_is_drawn_once() -> None:
    samples = proof_samples(MASTER, Recipe(), [BUCKET])
    assert len(samples) == 9 + 3
    assert {sample.variant for sample in samples} == {SampleVariant.FULL}
