"""The sizes that proof inputs are drawn at: the edges of a bucket, and between them."""

from itertools import pairwise

import numpy as np

from compiler_worker.inputs.sample_sizes import (
    edge_sizes,
    interior_sizes,
    largest_but_one,
    least_but_one,
    timed_sizes,
)
from compiler_worker.inputs.sampling import (
    SampleVariant,
    proof_samples,
    timed_samples,
)
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from tests.unit.compiler_worker.inputs.sampled import BUCKET, FLOATS, MASTER, RECIPE


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


def test_large_and_small_samples_take_turns() -> None:
    """What an engine leaves in its buffers shows where a smaller sample follows a larger one."""
    sizes = [s.inputs["ids"].size for s in proof_samples(MASTER, RECIPE, [BUCKET])]
    assert sizes[0] == max(sizes)
    assert sizes[1] == min(sizes)
    falls = sum(after < before for before, after in pairwise(sizes))
    assert falls >= len(sizes) // 2 - 1


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
