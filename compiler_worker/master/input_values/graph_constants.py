"""What is constant in a graph: small values that decide indices, and tables of any size."""

import math

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

# Offsets, bounds and places are small; a weight is not read to learn that it is none of them.
_MAX_ELEMENTS = 65_536
# What these give does not follow from their inputs alone.
_NOT_CONSTANT = frozenset(
    {
        "Bernoulli",
        "If",
        "Loop",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Scan",
    }
)


def constant(value: ir.Value | None) -> NDArray[np.float64] | None:
    """A small constant of numbers, float64 of any shape, or None."""
    tensor = value.const_value if value is not None else None
    if tensor is None or value is None or value.is_graph_input():
        return None
    is_number = tensor.dtype.is_integer() or tensor.dtype.is_floating_point()
    if not is_number or math.prod(tensor.shape.numpy()) > _MAX_ELEMENTS:
        return None
    return np.asarray(tensor.numpy(), np.float64)


def table_of(value: ir.Value | None) -> tuple[str, tuple[int, ...]] | None:
    """Name and shape of a table made of weights alone, also of stored codes and their scales."""
    if value is None or not _is_constant(value):
        return None
    sizes = [dim for dim in value.shape or () if isinstance(dim, int)]
    if value.shape is None or len(sizes) != len(value.shape):
        return None
    source = value
    while (node := source.producer()) and node.inputs and node.inputs[0] is not None:
        source = node.inputs[0]
    return source.name or "", tuple(sizes)


def _is_constant(value: ir.Value) -> bool:
    seen = set[ir.Value]()
    left = [value]
    while left:
        each = left.pop()
        if each in seen:
            continue
        seen.add(each)
        if each.const_value is not None and not each.is_graph_input():
            continue
        node = each.producer()
        if node is None or node.op_type in _NOT_CONSTANT:
            return False
        left.extend(given for given in node.inputs if given is not None)
    return True
