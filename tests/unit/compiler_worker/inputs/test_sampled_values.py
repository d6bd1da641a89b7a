"""Values of proof inputs: within the recipe's bounds, zero and large, and strings."""

from collections import Counter

import numpy as np
import pytest

from compiler_worker.inputs.sampling import (
    SampleVariant,
    draw_sample,
    proof_samples,
)
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import check_array
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, Recipe
from tests.unit.compiler_worker.inputs.sampled import BUCKET, FLOATS, MASTER, RECIPE


def test_values_stay_within_the_recipes_bounds_and_reach_them() -> None:
    sample = draw_sample(MASTER, RECIPE, BUCKET, {"batch": 64, "sequence": 64})
    assert sample.inputs["ids"].min() == 0
    assert sample.inputs["ids"].max() == 39


def test_floats_are_of_both_signs_and_once_of_eight_times_the_size() -> None:
    samples = proof_samples(FLOATS, Recipe(), [Bucket(dims={"batch": BUCKET.dims["batch"]})])
    (large,) = (s.inputs["x"] for s in samples if s.variant is SampleVariant.LARGE)
    usual = np.concatenate([s.inputs["x"] for s in samples if s.variant is SampleVariant.FULL])
    assert (usual < 0).mean() == pytest.approx(0.5, abs=0.1)
    assert usual.std() == pytest.approx(1.0, abs=0.1)
    assert large.std() == pytest.approx(8.0, rel=0.2)


def test_floats_of_a_range_stay_in_it() -> None:
    recipe = Recipe(inputs={"x": InputRecipe(low=0, high=2)})
    bucket = Bucket(dims={"batch": BUCKET.dims["batch"]})
    samples = proof_samples(FLOATS, recipe, [bucket])
    (zeros,) = (sample for sample in samples if sample.variant is not SampleVariant.FULL)
    assert (zeros.variant, np.abs(zeros.inputs["x"]).max()) == (SampleVariant.ZERO, 0)
    values = np.concatenate([sample.inputs["x"].ravel() for sample in samples])
    assert values.min() >= 0
    assert 1.9 < values.max() <= 2


def test_zeros_are_drawn_unless_a_range_has_none() -> None:
    bucket = Bucket(dims={"batch": BUCKET.dims["batch"]})
    for recipe, num in ((Recipe(), 1), (Recipe(inputs={"x": InputRecipe(low=1, high=2)}), 0)):
        samples = proof_samples(FLOATS, recipe, [bucket])
        zeros = [s.inputs["x"] for s in samples if s.variant is SampleVariant.ZERO]
        assert len(zeros) == num
        # Of 0 alone: the inverse of its negative is another one.
        assert not any(array.any() or np.signbit(array).any() for array in zeros)


def test_integers_without_a_range_are_not_all_the_same() -> None:
    """Zeros alone would close a mask and look up one row of every table."""
    ids = draw_sample(MASTER, Recipe(), BUCKET, {"batch": 8, "sequence": 32}).inputs["ids"]
    assert sorted(np.unique(ids)) == [0, 1]


WORDS = TensorSpec(name="words", datatype="BYTES", shape=("batch", 2))


def words_drawn(recipe: Recipe, rows: int, seed: int = 1) -> np.ndarray:
    master = MASTER.model_copy(update={"inputs": (WORDS,)})
    bucket = Bucket(dims={"batch": DimRange(min=1, opt=1, max=rows)})
    return draw_sample(master, recipe, bucket, {"batch": rows}, seed=seed).inputs["words"]


def test_strings_are_drawn_from_the_recipes_each_as_often() -> None:
    recipe = Recipe(inputs={"words": InputRecipe(values=("a", "", "Ж\0"))})
    words = words_drawn(recipe, 6)
    check_array(WORDS, words)
    assert Counter(words.ravel().tolist()) == {"a": 4, "": 4, "Ж\0": 4}
    assert words.tolist() == words_drawn(recipe, 6).tolist()
    assert words.tolist() != words_drawn(recipe, 6, seed=2).tolist()
    assert set(words_drawn(recipe, 1, seed=3).ravel()) < {"a", "", "Ж\0"}


def test_strings_by_default_are_of_many_lengths() -> None:
    words = set(words_drawn(Recipe(), 8).ravel().tolist())
    assert "" in words
    assert len({len(word) for word in words}) > 4
    assert any(len(word) != len(word.encode()) for word in words)
