"""Proof inputs: they cover the edges, and are the same everywhere."""

import hashlib
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from compiler_worker.inputs.sample_sizes import (
    edge_sizes,
    interior_sizes,
    largest_but_one,
    least_but_one,
    timed_sizes,
)
from compiler_worker.inputs.sampling import (
    Sample,
    SampleVariant,
    draw_sample,
    proof_samples,
    timed_samples,
)
from services.contracts.kserve.tensors import TensorSpec
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe
from tests.conformance.tiny_model import master_record

MASTER = master_record()
RECIPE = Recipe(inputs={"ids": InputRecipe(high=40), "mask": InputRecipe(role=InputRole.MASK)})
BUCKET = Bucket(
    dims={"batch": DimRange(min=1, opt=4, max=8), "sequence": DimRange(min=2, opt=16, max=32)}
)


def fingerprint() -> str:
    """A digest over all samples of a bucket; also run in another process."""
    hasher = hashlib.sha256()
    for sample in proof_samples(MASTER, RECIPE, [BUCKET]):
        hasher.update(f"{sample.sizes} {sample.variant}".encode())
        for name, array in sorted(sample.inputs.items()):
            hasher.update(name.encode() + array.tobytes())
    return hasher.hexdigest()


def test_edges_are_all_combinations_of_min_opt_and_max() -> None:
    sizes = edge_sizes(BUCKET)
    assert len(sizes) == 9
    for batch in (1, 4, 8):
        for sequence in (2, 16, 32):
            assert {"batch": batch, "sequence": sequence} in sizes


def test_three_dimensions_keep_every_edge_without_all_combinations() -> None:
    box = Bucket(dims={name: DimRange(min=1, opt=2, max=3) for name in "abc"})
    sizes = edge_sizes(box)
    assert len(sizes) == 9
    for name in "abc":
        assert {size[name] for size in sizes} == {1, 2, 3}
        assert {n: 1 if n == name else 3 for n in "abc"} in sizes
        assert {n: 3 if n == name else 1 for n in "abc"} in sizes


def test_a_bucket_of_one_size_has_one_edge() -> None:
    fixed = Bucket(dims={"batch": DimRange(min=2, opt=2, max=2)})
    assert edge_sizes(fixed) == timed_sizes(fixed) == [{"batch": 2}]
    assert edge_sizes(Bucket(dims={})) == timed_sizes(Bucket(dims={})) == [{}]


def test_timed_sizes_are_opt_and_max() -> None:
    assert timed_sizes(BUCKET) == [{"batch": 4, "sequence": 16}, {"batch": 8, "sequence": 32}]


def test_inputs_have_the_models_names_types_and_shapes() -> None:
    sample = draw_sample(MASTER, RECIPE, BUCKET, {"batch": 3, "sequence": 5})
    for spec in MASTER.inputs:
        spec.check(sample.inputs[spec.name])
        assert sample.inputs[spec.name].shape == (3, 5)


def test_values_stay_within_the_recipes_bounds_and_reach_them() -> None:
    sample = draw_sample(MASTER, RECIPE, BUCKET, {"batch": 64, "sequence": 64})
    assert sample.inputs["ids"].min() == 0
    assert sample.inputs["ids"].max() == 39


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


def variants_at(samples: Sequence[Sample], **sizes: int) -> dict[SampleVariant, Sample]:
    """The samples of one shape."""
    return {sample.variant: sample for sample in samples if sample.sizes == sizes}


def test_sizes_are_also_one_inside_of_the_edges_and_no_powers_of_two() -> None:
    assert largest_but_one(BUCKET) == {"batch": 7, "sequence": 31}
    assert least_but_one(BUCKET) == {"batch": 2, "sequence": 3}
    for seed in range(50):
        inner = interior_sizes(BUCKET, np.random.default_rng(seed))
        assert 1 < inner["batch"] < 8
        assert 2 < inner["sequence"] < 32
        assert all(size & (size - 1) for size in inner.values())
    fixed = Bucket(dims={"batch": DimRange(min=4, opt=4, max=4)})
    assert interior_sizes(fixed, np.random.default_rng(1)) == largest_but_one(fixed) == {"batch": 4}


def test_another_engine_is_compared_at_further_sizes_and_values() -> None:
    common = proof_samples(MASTER, RECIPE, [BUCKET])
    drawn = [proof_samples(MASTER, RECIPE, [BUCKET], engine_seed=seed) for seed in (5, 6)]
    seen = {content(sample) for sample in common}
    further = [[s for s in samples if content(s) not in seen] for samples in drawn]
    assert [len(samples) for samples in further] == [2, 2]
    assert all({"batch": 4, "sequence": 16} in [s.sizes for s in samples] for samples in further)
    assert content(further[0][0]) != content(further[1][0])
    assert all(seen < {content(s) for s in samples} for samples in drawn)


def content(sample: Sample) -> bytes:
    """All inputs of a sample, to tell it from others."""
    return b"".join(array.tobytes() for _, array in sorted(sample.inputs.items()))


def test_large_and_small_samples_take_turns() -> None:
    """What an engine leaves in its buffers shows where a smaller sample follows a larger one."""
    sizes = [s.inputs["ids"].size for s in proof_samples(MASTER, RECIPE, [BUCKET])]
    assert sizes[0] == max(sizes)
    assert sizes[1] == min(sizes)
    falls = sum(after < before for before, after in pairwise(sizes))
    assert falls >= len(sizes) // 2 - 1


FLOATS = MASTER.model_copy(
    update={"inputs": (TensorSpec(name="x", datatype="FP32", shape=("batch", 50)),)}
)


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


def test_a_model_of_single_rows_is_asked_for_enough_of_them() -> None:
    single = Bucket(dims={"batch": DimRange(min=1, opt=1, max=1)})
    samples = proof_samples(FLOATS, Recipe(), [single])
    usual = [s.inputs["x"] for s in samples if s.variant is SampleVariant.FULL]
    assert sum(map(len, usual)) >= 8
    assert len({x.tobytes() for x in usual}) == len(usual)


def test_a_model_of_integers_is_asked_for_enough_single_rows() -> None:
    bucket = Bucket(dims={"batch": DimRange(min=1, opt=16, max=64)})
    for datatype, num in (("FP32", 1), ("INT64", 8), ("BOOL", 8)):
        label = TensorSpec(name="label", datatype=datatype, shape=("batch",))
        master = FLOATS.model_copy(update={"outputs": (label,)})
        samples = proof_samples(master, Recipe(), [bucket])
        single = [s.inputs["x"].tobytes() for s in samples if s.sizes == {"batch": 1}]
        assert (len(single), len(set(single))) == (num, num)


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


def test_what_may_be_empty_is_drawn_empty_too() -> None:
    dims = {**BUCKET.dims, "sequence": DimRange(min=0, opt=1, max=1)}
    samples = proof_samples(MASTER, RECIPE, [Bucket(dims=dims)])
    shapes = {sample.inputs["ids"].shape for sample in samples}
    assert {(batch, sequence) for batch in (1, 4, 8) for sequence in (0, 1)} <= shapes


def test_what_begins_at_0_begins_at_1_too() -> None:
    dims = {**BUCKET.dims, "sequence": DimRange(min=0, opt=16, max=32)}
    assert {sizes["sequence"] for sizes in edge_sizes(Bucket(dims=dims))} == {0, 1, 16, 32}
    three = Bucket(dims={**dims, "n": DimRange(min=0, opt=4, max=8)})
    assert {"batch": 1, "sequence": 1, "n": 1} in edge_sizes(three)


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


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16", "FP64", "BOOL", "UINT8", "INT32"])
def test_every_datatype_can_be_drawn(datatype: str) -> None:
    spec = TensorSpec(name="x", datatype=datatype, shape=("batch", 50))
    master = MASTER.model_copy(update={"inputs": (spec,)})
    recipe = Recipe(inputs={"x": InputRecipe(low=0, high=9)})
    array = draw_sample(master, recipe, BUCKET, {"batch": 2}).inputs["x"]
    spec.check(array)
    assert len(np.unique(array.astype(np.float64))) > 1


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16", "FP64", "BOOL", "UINT8", "INT64"])
def test_an_input_of_no_dimensions_is_an_array_too(datatype: str) -> None:
    """As a scale or a threshold: libraries refuse numpy's own numbers."""
    spec = TensorSpec(name="scale", datatype=datatype, shape=())
    master = MASTER.model_copy(update={"inputs": (spec,)})
    for variant in (SampleVariant.FULL, SampleVariant.LARGE):
        drawn = draw_sample(master, Recipe(), BUCKET, {}, variant=variant).inputs["scale"]
        assert isinstance(drawn, np.ndarray)
        spec.check(drawn)


def test_integers_without_a_range_are_not_all_the_same() -> None:
    """Zeros alone would close a mask and look up one row of every table."""
    ids = draw_sample(MASTER, Recipe(), BUCKET, {"batch": 8, "sequence": 32}).inputs["ids"]
    assert sorted(np.unique(ids)) == [0, 1]


def test_sizes_that_two_buckets_share_are_drawn_once() -> None:
    larger = Bucket(dims={**BUCKET.dims, "batch": DimRange(min=1, opt=8, max=16)})
    shapes = [
        (sample.bucket, *sample.sizes.values())
        for sample in proof_samples(MASTER, Recipe(), [BUCKET, larger])
    ]
    assert len({shape[1:] for shape in shapes}) == len(shapes)
    edges = {tuple(sizes.values()) for each in (BUCKET, larger) for sizes in edge_sizes(each)}
    assert len(edges) == 9 + 3
    assert edges < {shape[1:] for shape in shapes}
    assert {shape[1] for shape in shapes if shape[0] == larger.label} >= {16, 15}
    timed = [sample.sizes["batch"] for sample in timed_samples(MASTER, RECIPE, [BUCKET, larger])]
    assert timed == [4, 8, 8, 16]


def test_two_buckets_two_variants_two_seeds_draw_differently() -> None:
    sizes = {"batch": 4, "sequence": 16}
    other = Bucket(dims={**BUCKET.dims, "batch": DimRange(min=1, opt=4, max=9)})
    draws = [
        draw_sample(MASTER, RECIPE, BUCKET, sizes),
        draw_sample(MASTER, RECIPE, BUCKET, sizes, variant=SampleVariant.RAGGED),
        draw_sample(MASTER, RECIPE, BUCKET, sizes, seed=1),
        draw_sample(MASTER, RECIPE, other, sizes),
    ]
    assert len({draw.inputs["ids"].tobytes() for draw in draws}) == len(draws)


def test_another_process_draws_the_same_bytes() -> None:
    root = Path(__file__).resolve().parents[4]
    module = "tests.unit.compiler_worker.inputs.test_sampling"
    code = f"from {module} import fingerprint; print(fingerprint())"
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == fingerprint()


def test_the_draw_is_the_one_that_was_always_drawn() -> None:
    """A change would compute all kept references anew and make old proofs unrepeatable."""
    assert fingerprint() == "878db6c38d73297017b7d37b109c30b6f9f5f038633348bc0ae88a8a3a252e33"


WORDS = TensorSpec(name="words", datatype="BYTES", shape=("batch", 2))


def words_drawn(recipe: Recipe, rows: int, seed: int = 1) -> np.ndarray:
    master = MASTER.model_copy(update={"inputs": (WORDS,)})
    bucket = Bucket(dims={"batch": DimRange(min=1, opt=1, max=rows)})
    return draw_sample(master, recipe, bucket, {"batch": rows}, seed=seed).inputs["words"]


def test_strings_are_drawn_from_the_recipes_each_as_often() -> None:
    recipe = Recipe(inputs={"words": InputRecipe(values=("a", "", "Ж\0"))})
    words = words_drawn(recipe, 6)
    WORDS.check(words)
    assert Counter(words.ravel().tolist()) == {"a": 4, "": 4, "Ж\0": 4}
    assert words.tolist() == words_drawn(recipe, 6).tolist()
    assert words.tolist() != words_drawn(recipe, 6, seed=2).tolist()
    assert set(words_drawn(recipe, 1, seed=3).ravel()) < {"a", "", "Ж\0"}


def test_strings_by_default_are_of_many_lengths() -> None:
    words = set(words_drawn(Recipe(), 8).ravel().tolist())
    assert "" in words
    assert len({len(word) for word in words}) > 4
    assert any(len(word) != len(word.encode()) for word in words)
