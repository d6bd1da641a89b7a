"""Checks a call's arrays, of any shape, against the model's inputs, before any library does."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array, check_array

Sizes = dict[str, int]


def checked_arrays(
    specs: Sequence[TensorSpec], inputs: Mapping[str, Array], may_be_empty: Collection[str] = ()
) -> tuple[list[Array], Sizes]:
    """The arrays in the order of the specs, contiguous, and the size of each dynamic dimension.

    Args:
        specs: what the model takes.
        inputs: by name.
        may_be_empty: dimensions of which a size of 0 is taken.

    Raises:
        InvalidRequestError: a name is missing or unknown, a datatype or shape does not fit,
            a dimension is empty, or two inputs disagree about a dimension.
    """
    _check_names(specs, inputs)
    sizes: Sizes = {}
    for spec in specs:
        check_array(spec, inputs[spec.name])
        _note_sizes(spec, inputs[spec.name], sizes, may_be_empty)
    return [contiguous(inputs[spec.name]) for spec in specs], sizes


def _check_names(specs: Sequence[TensorSpec], inputs: Mapping[str, Array]) -> None:
    # Nearly always: this runs for each call, and lists are for messages alone.
    if len(specs) == len(inputs) and all(spec.name in inputs for spec in specs):
        return
    wanted = [spec.name for spec in specs]
    for fault, names in (
        ("is missing", [name for name in wanted if name not in inputs]),
        ("is unknown", [name for name in inputs if name not in wanted]),
    ):
        if names:
            raise InvalidRequestError(
                f"input '{names[0]}' {fault}: expected {', '.join(wanted)}, "
                f"got {', '.join(inputs) or 'nothing'}"
            )


def _note_sizes(
    spec: TensorSpec, array: Array, sizes: Sizes, may_be_empty: Collection[str]
) -> None:
    for axis, dim in enumerate(spec.shape):
        size = array.shape[axis]
        if size == 0 and dim not in may_be_empty:
            # Libraries disagree about empty tensors: only what was tried before is taken.
            raise InvalidRequestError(
                f"input '{spec.name}': dimension {axis} ('{dim}') is 0, expected at least 1"
            )
        if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
            raise InvalidRequestError(
                f"input '{spec.name}': dimension '{dim}' is {size}, other inputs have {sizes[dim]}"
            )


def contiguous(array: Array) -> Array:
    """An array, copied where it is not contiguous; `ascontiguousarray` makes a 0-d one 1-d."""
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
