"""Optionals: whether there is an element is known at import."""

from __future__ import annotations

import torch

from compiler_worker.onnx_to_fx.control_flow.unrolled import host_scalar
from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.dtypes import CARRIED
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import AnyValue, HostValue, OptionalValue


@converter("Optional", versions=(15, 28), carried=CARRIED)
def optional(op: Op) -> OptionalValue:
    """The input as an optional; an empty one without an input."""
    value = op.any_value(0) if op.has(0) else None
    return value if isinstance(value, OptionalValue) else OptionalValue(value)


@converter("OptionalGetElement", versions=(15, 18, 28), carried=CARRIED)
def get_element(op: Op) -> AnyValue:
    """The element, or a tensor or sequence itself; raises UnsupportedGraphError without one."""
    value = op.any_value(0)
    if not isinstance(value, OptionalValue):
        return value
    if value.item is None:
        raise op.refuse("the optional has no element")
    return value.item


@converter("OptionalHasElement", versions=(15, 18, 28), carried=CARRIED)
def has_element(op: Op) -> HostValue:
    """Whether there is an element."""
    value = op.any_value(0) if op.has(0) else OptionalValue(None)
    return host_scalar(not isinstance(value, OptionalValue) or value.item is not None, torch.bool)
