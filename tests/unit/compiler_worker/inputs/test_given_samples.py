"""Real rows as runs of a proof: those of requests in each bucket that takes them."""

import numpy as np

from compiler_worker.inputs.given_samples import MAX_RUNS, given_samples
from compiler_worker.inputs.sampling import SampleVariant
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Bucket, DimRange
from tests.unit.compiler_worker.inputs.sampled import MASTER, RECIPE

BUCKETS = [
    Bucket(dims={"batch": DimRange(min=1, opt=1, max=rows), "sequence": span})
    for rows, span in (
        (2, DimRange(min=4, opt=8, max=8)),
        (4, DimRange(min=9, opt=16, max=16)),
        (8, DimRange(min=1, opt=32, max=32)),
    )
]


def rows(lengths: list[int], size: int) -> dict[str, Array]:
    """Rows of so many valid positions, padded to one size."""
    mask = (np.arange(size) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.arange(len(lengths))[:, None] + np.ones_like(mask)
    return {"ids": ids * mask, "mask": mask}


def test_rows_of_requests_run_in_the_buckets_that_take_them() -> None:
    lengths = [2, 12, 3, 30, 8, 10]
    samples = given_samples(rows(lengths, 32), MASTER, RECIPE, BUCKETS, SampleVariant.TRAFFIC)
    found = [(each.bucket, each.inputs["mask"].sum(axis=1).tolist()) for each in samples]
    labels = [bucket.label for bucket in BUCKETS]
    assert found == [
        (labels[0], [2, 3]),
        (labels[0], [8]),
        (labels[1], [12, 10]),
        (labels[2], [30]),
    ]
    assert [each.sizes["sequence"] for each in samples] == [8, 8, 12, 30]
    assert samples[0].inputs["ids"][:, :4].tolist() == [[1, 1, 0, 0], [3, 3, 3, 0]]


def test_short_rows_are_padded_to_what_their_bucket_begins_with() -> None:
    (sample,) = given_samples(rows([2, 1], 2), MASTER, RECIPE, BUCKETS, SampleVariant.TRAFFIC)
    assert (sample.bucket, sample.sizes["sequence"]) == (BUCKETS[0].label, 4)
    assert sample.inputs["mask"].tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]


def test_runs_are_bounded_in_each_bucket_and_an_owners_samples_stay_as_they_are() -> None:
    many = rows([3] * 40 + [12] * 4, 16)
    samples = given_samples(many, MASTER, RECIPE, BUCKETS, SampleVariant.TRAFFIC)
    assert 4 < [each.bucket for each in samples].count(BUCKETS[0].label) <= MAX_RUNS
    assert samples[-1].bucket == BUCKETS[1].label
    given = given_samples(many, MASTER, RECIPE, BUCKETS)
    assert {each.sizes["sequence"] for each in given} == {16}
