"""Arithmetic of buckets: waste, and buckets of shapes."""

import pytest

from services.cli.sizes.best_shapes import Shape
from services.cli.sizes.bucket_advice import SizeCounts, proposed_buckets, shapes_of, waste
from services.contracts.model.recipe import Bucket, DimRange

BUCKET = Bucket(
    dims={"batch": DimRange(min=1, opt=8, max=32), "sequence": DimRange(min=1, opt=64, max=512)}
)


def test_each_request_is_padded_to_the_smallest_edge_that_holds_it() -> None:
    seen = SizeCounts(counts={8: 3.0, 64: 1.0}, total=80.0)
    assert waste(seen, [64]) == pytest.approx(1 - 80 / 256)
    assert waste(seen, [8, 64]) == pytest.approx(1 - 80 / 88)


def test_a_bucket_for_each_shape_takes_what_a_median_request_and_a_usual_batch_have() -> None:
    seen = {"sequence": SizeCounts({4: 1.0, 10: 5.0, 300: 1.0})}
    shapes = [Shape(16, 4), Shape(16, 128), Shape(512, 32)]
    buckets = proposed_buckets((BUCKET,), "sequence", shapes, seen, "batch")
    assert [bucket.dims["batch"] for bucket in buckets] == [
        DimRange(min=1, opt=4, max=4),
        DimRange(min=1, opt=8, max=128),
        DimRange(min=1, opt=8, max=32),
    ]
    short = DimRange(min=1, opt=10, max=16)
    assert [bucket.dims["sequence"] for bucket in buckets] == [
        short,
        short,
        DimRange(min=1, opt=300, max=512),
    ]
    assert shapes_of(buckets, "sequence", "batch") == shapes
    assert shapes_of(buckets, "sequence", None) == [Shape(16, 1), Shape(16, 1), Shape(512, 1)]
