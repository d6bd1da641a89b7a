"""Ops that make tensors. What they make is on the graph's device."""

import math
from typing import Any

import numpy as np
import onnx
import torch

from compiler_worker.onnx_to_fx.constants import constant_from_tensor
from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.converters.elementwise.casting import (
    HOST_TYPES,
    dtype_from_attribute,
)
from compiler_worker.onnx_to_fx.dtypes import CARRIED, WIDE_UNSIGNED, carried_tensor
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym, sym_max, sym_min
from compiler_worker.onnx_to_fx.values import MAX_HOST_ELEMENTS, Constant, HostValue, Tensor
from services.contracts.errors import UnsupportedGraphError


@converter("Constant", versions=(1, 9, 11, 12, 13, 19, 21, 23, 24, 25))
def constant(op: Op) -> Constant:
    """A constant in the graph; named after its output.

    Raises UnsupportedGraphError for strings and sparse ones.
    """
    name = op.proto.output[0]
    tensor = op.maybe_tensor("value")
    if tensor is not None:
        return _constant(op, name, tensor)
    attribute = op.proto.attribute[0]
    if "string" in attribute.name or "sparse" in attribute.name:
        raise op.refuse(f"attribute '{attribute.name}' is not translated")
    value = onnx.helper.get_attribute_value(attribute)
    if "float" in attribute.name:
        return Constant(name, np.asarray(value, np.float32), torch.float32)
    return Constant(name, np.asarray(value, np.int64), torch.int64)


def _constant(op: Op, name: str, tensor: onnx.TensorProto) -> Constant:
    try:
        return constant_from_tensor(name, tensor)
    except UnsupportedGraphError as error:
        raise op.refuse(error.reason) from error


@converter("ConstantOfShape", versions=(9, 20, 21, 23, 24, 25))
def constant_of_shape(op: Op) -> Tensor | HostValue:
    """A tensor of one repeated value; small integer ones of fixed shape stay on the host."""
    given = op.maybe_tensor("value")
    fill = (
        Constant("fill", np.zeros(1, np.float32), torch.float32)
        if given is None
        else _constant(op, "fill", given)
    )
    sizes = op.ints(0)
    value = carried_tensor(fill.array, fill.dtype).item()
    static = [size for size in sizes if not isinstance(size, Sym)]
    on_host = len(static) == len(sizes) and fill.dtype in HOST_TYPES
    if on_host and math.prod(static) <= MAX_HOST_ELEMENTS:
        return HostValue(np.full(static, value, dtype=object), fill.dtype)
    return emit_full(op, sizes, value, fill.dtype)


def emit_full(op: Op, sizes: list[HostInt], value: float, dtype: torch.dtype) -> Tensor:
    """Emit a tensor of one value on the graph's device.

    Args:
        op: the node.
        sizes: of the tensor.
        value: of every element.
        dtype: element type in the master.
    """
    graph = op.graph
    number = graph.number(value, dtype)
    node = graph.call(torch.full, sizes, number, dtype=graph.dtype(dtype), device=graph.device())
    return Tensor(node, dtype, tuple(sizes))


def _range_on_host(op: Op) -> HostValue | None:
    bounds = [op.number(index) for index in range(3)]
    if any(bound is None or isinstance(bound, Sym) for bound in bounds):
        return None
    items = range(*bounds)
    if len(items) > MAX_HOST_ELEMENTS:
        return None
    return HostValue(np.asarray(list(items), dtype=object), op.value(0).dtype)


@converter("Range", versions=(11, 27), host=_range_on_host)
def range_(op: Op) -> Tensor:
    """start, start + delta, ... below limit.

    Raises UnsupportedGraphError for bounds that are not on the host.
    """
    dtype = op.value(0).dtype
    bounds = [_bound(op, index) for index in range(3)]
    if any(bound is None for bound in bounds):
        raise op.refuse(
            "bounds depend on input values; make them constant or derive them from Shape"
        )
    start, limit, delta = bounds
    graph = op.graph
    if dtype.is_floating_point:
        return _float_range(op, dtype, (start, limit, delta))
    if not isinstance(delta, Sym) and isinstance(limit - start, Sym):
        # No elements where the bounds cross, at which torch raises.
        limit = sym_max(start, limit) if delta > 0 else sym_min(start, limit)
    node = op.call(torch.arange, start, limit, delta, dtype=dtype, device=graph.device())
    return Tensor(node, dtype, (_range_length(start, limit, delta),))


def _bound(op: Op, index: int) -> Any:
    number = op.number(index)
    return op.known(op.value(index)) if number is None else number


def _float_range(op: Op, dtype: torch.dtype, bounds: tuple[Any, Any, Any]) -> Tensor:
    """Elements are start + i * delta, as ONNX counts them; 16-bit ones are rounded at the end."""
    start, limit, delta = bounds
    is_half = dtype in (torch.float16, torch.bfloat16)
    if any(isinstance(bound, Sym) for bound in bounds) or delta == 0:
        raise op.refuse("the bounds of a range of floats must be constant, its delta not zero")
    if is_half and op.attr_int("stash_type") != onnx.TensorProto.FLOAT:
        raise op.refuse("only stash_type 1 (steps in float32) is translated")
    count = max(int(np.ceil((limit - start) / delta)), 0)
    wide = op.graph.dtype(torch.float32 if is_half else dtype)
    steps = op.call(torch.arange, count, dtype=wide, device=op.graph.device())
    node = op.call(torch.add, op.call(torch.mul, steps, delta), start)
    return Tensor(op.method("to", node, dtype) if is_half else node, dtype, (count,))


def _range_length(start: HostInt, limit: HostInt, delta: HostInt) -> HostInt | None:
    if start == 0 and delta == 1 and isinstance(limit, Sym) and limit.is_size:
        return limit
    if isinstance(start, Sym) or isinstance(limit, Sym) or isinstance(delta, Sym):
        return None
    return len(range(start, limit, delta))


@converter("EyeLike", versions=(9, 22), carried=WIDE_UNSIGNED)
def eye_like(op: Op) -> Tensor:
    """Ones on diagonal k of a matrix of the input's sizes.

    Raises UnsupportedGraphError for small elements (`CARRIED` less `WIDE_UNSIGNED`).
    """
    x = op.tensor(0)
    rows, columns = op.dims(0)
    graph = op.graph
    elem_type = op.maybe_int("dtype")
    dtype = x.dtype if elem_type is None else dtype_from_attribute(op, elem_type)
    if dtype in CARRIED - WIDE_UNSIGNED:
        raise op.refuse("a matrix of small elements is not translated")
    row = op.call(torch.unsqueeze, op.call(torch.arange, rows, device=graph.device()), 1)
    column = op.call(torch.arange, columns, device=graph.device())
    on_diagonal = op.call(torch.eq, op.call(torch.sub, column, row), op.attr_int("k"))
    return x.like(op.method("to", on_diagonal, graph.dtype(dtype)), dtype=dtype)
