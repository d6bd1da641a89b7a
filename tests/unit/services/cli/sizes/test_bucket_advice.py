"""Arithmetic of buckets: edges, waste, and rows of a batch."""

from itertools import combinations

import pytest

from services.cli.planning.curves import Curve
from services.cli.sizes.bucket_advice import (
    SizeCounts,
    best_edges,
    proposed_buckets,
    time_per_request,
    waste,
)
from services.cli.sizes.measured_cost import MeasuredCost
from services.contracts.model.recipe import Bucket, DimRange

BUCKET = Bucket(
    dims={"batch": DimRange(min=1, opt=8, max=32), "sequence": DimRange(min=1, opt=64, max=512)}
)


@pytest.mark.parametrize("num", [1, 2, 3, 4, 9])
def test_no_other_edges_waste_less(num: int) -> None:
    counts = {8: 40.0, 16: 11.0, 24: 30.0, 40: 6.0, 96: 9.0, 128: 3.0}
    seen = SizeCounts(counts=counts, total=2000.0)
    edges = best_edges(seen, num, 256)
    assert edges[-1] == 256
    assert len(edges) <= num
    others = combinations(sorted(counts), min(num - 1, len(counts)))
    assert waste(seen, edges) == pytest.approx(
        min(waste(seen, [*chosen, 256]) for chosen in others)
    )


def test_what_the_largest_bucket_refuses_is_no_reason_for_another() -> None:
    seen = SizeCounts(counts={8: 5.0, 512: 5.0}, total=600.0)
    assert best_edges(seen, 3, 128) == [8, 128]


def test_what_engines_took_decides_where_it_is_not_in_proportion() -> None:
    seen = SizeCounts(counts={8: 50.0, 64: 50.0, 512: 1.0}, total=4000.0)

    # All up to 64 take the same: a bucket of 8 would be for nothing.
    def flat(size: int) -> float:
        return max(size / 64, 1.0)

    assert best_edges(seen, 2, 512, flat) == [64, 512]
    assert best_edges(seen, 3, 512) == [8, 64, 512]
    assert time_per_request(seen, [512], flat) == 8.0
    assert time_per_request(seen, [64, 512], flat) == pytest.approx(108 / 101)
    many = SizeCounts(counts=dict.fromkeys(range(1, 8193), 1.0), total=8192 * 4096.5)
    assert best_edges(many, 2, 8192) == [4096, 8192]


def test_short_rows_are_batched_as_far_as_that_pays() -> None:
    points = ((32 * 8, 0.001), (32 * 64, 0.001), (32 * 512, 0.008))
    curve = Curve.through("engine", points, pads_to_largest=True)
    assert curve
    cost = MeasuredCost(curve=curve, name="engine", rows={64: 16, 512: 32}, others=1)
    # From 256 to 2,048 elements a run takes the same, beyond that in proportion; 32 were not timed.
    assert [cost.best_rows(size) for size in (1, 16, 64, 256, 512)] == [32, 128, 32, 32, 32]
    assert cost.seconds(64) == 0.001 / 16
    assert cost.seconds(512) == 0.008 / 32
    assert cost.best_seconds(16) == 0.001 / 128
    buckets = proposed_buckets(
        (BUCKET,),
        "sequence",
        [16, 512],
        {"sequence": SizeCounts({16: 1.0})},
        "batch",
        cost.best_rows,
    )
    assert [bucket.dims["batch"].max for bucket in buckets] == [128, 32]
    # No run is larger than the largest that was timed.
    steep = MeasuredCost(curve=curve, name="engine", rows={64: 16}, others=1)
    assert steep.best_rows(16) == 64
