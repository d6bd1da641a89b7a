"""Sizes by default, of models whose recipe names none."""

import pytest

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.default_buckets import default_buckets


@pytest.mark.parametrize(
    ("shape", "batch_dim", "most"),
    [
        (("batch", 3, 224, 224), "batch", {"batch": 8}),
        # Rows that are not joined are few all the same.
        (("batch", 3, 224, 224), None, {"batch": 8}),
        (("batch_size", "sequence"), None, {"batch_size": 8, "sequence": 128}),
        (("frames", 80), None, {"frames": 128}),
        (("n", 3, "h", "w"), "n", {"n": 8, "h": 256, "w": 256}),
    ],
)
def test_sizes_by_default(
    shape: tuple[int | str, ...], batch_dim: str | None, most: dict[str, int]
) -> None:
    specs = [TensorSpec(name="x", datatype="FP32", shape=shape)]
    (bucket,) = default_buckets(specs, batch_dim)
    assert {dim: span.max for dim, span in bucket.dims.items()} == most
