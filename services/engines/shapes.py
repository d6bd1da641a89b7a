"""Buckets as an engine sees them: which one holds a request, and padding to it and back."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.model.input_values import Category, by_place
from services.contracts.model.recipe import Bucket, DimRange
from services.engines.request_check import Sizes


def union_of(buckets: Sequence[Bucket]) -> dict[str, DimRange]:
    """The smallest box around all buckets, by dimension; `opt` is that of the largest one."""
    ranges: dict[str, DimRange] = {}
    # By size: the last one sets `opt`.
    for bucket in sorted(buckets, key=volume):
        for name, dim in bucket.dims.items():
            known = ranges.get(name, dim)
            ranges[name] = DimRange(
                min=min(known.min, dim.min), opt=dim.opt, max=max(known.max, dim.max)
            )
    return ranges


def dims_that_may_be_empty(buckets: Sequence[Bucket]) -> frozenset[str]:
    """The dimensions that some bucket lets begin at 0."""
    return frozenset(n for bucket in buckets for n, dim in bucket.dims.items() if dim.min == 0)


def volume(bucket: Bucket) -> int:
    """Product of the largest sizes: what running padded to this bucket costs."""
    return math.prod(dim.max for dim in bucket.dims.values())


def smallest_holding(buckets: Sequence[Bucket], sizes: Sizes) -> int:
    """Index of the cheapest bucket whose ranges hold these sizes.

    Raises:
        InvalidRequestError: they lie outside every bucket; says sizes and buckets.
    """
    fitting = [index for index, bucket in enumerate(buckets) if bucket.holds(sizes)]
    if not fitting:
        raise InvalidRequestError(
            f"shape {_text(sizes)} lies outside every bucket of this engine: expected "
            + " or ".join(ranges_text(bucket.dims) for bucket in buckets)
        )
    return min(fitting, key=lambda index: volume(buckets[index]))


def check_within(ranges: Mapping[str, DimRange], sizes: Sizes) -> None:
    """Raise InvalidRequestError when a size lies outside the box an engine was built for."""
    for name, dim in ranges.items():
        if name in sizes and not dim.min <= sizes[name] <= dim.max:
            raise InvalidRequestError(
                f"dimension '{name}' is {sizes[name]}: this engine was built for "
                f"{ranges_text(ranges)}"
            )


def shape_at(spec: TensorSpec, sizes: Sizes) -> tuple[int, ...]:
    """The concrete shape of a tensor for given sizes of the dynamic dimensions."""
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape)


def corner(shape: Sequence[int]) -> tuple[slice, ...]:
    """The index of a smaller tensor's place at the origin of a padded one."""
    return tuple(slice(0, size) for size in shape)


def write_padded(target: Array, source: Array, pad: float) -> None:
    """Copy a tensor into the origin corner of a larger one and fill the rest with `pad`.

    Args:
        target: of the same rank, no dimension smaller than the source's; it is overwritten.
        source: is copied; of any shape.
        pad: in the unit of the tensor's values.
    """
    # The target is used again: values of the request before would be left in the padding.
    if target.shape != source.shape:
        target.fill(pad)
    target[corner(source.shape)] = source


def zeros_at(spec: TensorSpec, sizes: Sizes) -> Array:
    """An input of zeros, of any shape that the spec has at these sizes.

    They are a valid index, a closed mask, and any value where values do not matter.
    """
    return np.zeros(shape_at(spec, sizes), dtype=NUMPY_FROM_DATATYPE[spec.datatype])


def put_first(sample: Array, choices: Sequence[Sequence[Category]]) -> None:
    """Set each place to the first of its categories; encoders refuse what they do not know.

    Args:
        sample: of an input; changed in place.
        choices: one list for all places, or one for each place of the last axis, [] for none.
    """
    for place, known in by_place(choices):
        sample[..., place] = known[0]


def _text(sizes: Sizes) -> str:
    return ", ".join(f"{n}={size}" for n, size in sorted(sizes.items())) or "of no dimensions"


def ranges_text(ranges: Mapping[str, DimRange]) -> str:
    """A box in words: `batch 1..8, sequence 1..128`, or `static`."""
    return ", ".join(f"{n} {r.min}..{r.max}" for n, r in sorted(ranges.items())) or "static"
