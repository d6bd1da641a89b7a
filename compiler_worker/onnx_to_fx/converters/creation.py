"""Ops that make tensors, and casts. What they make lives on the graph's device."""

import math

import numpy as np
import onnx
import torch

from compiler_worker.onnx_to_fx.constants import constant_from_tensor
from compiler_worker.onnx_to_fx.dtypes import (
    array_sharing_memory,
    onnx_type_name,
    tensor_sharing_memory,
    torch_dtype_from_onnx,
)
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.registry import converter
from compiler_worker.onnx_to_fx.sym import HostInt, Sym
from compiler_worker.onnx_to_fx.values import MAX_HOST_ELEMENTS, Constant, Host, Tensor

_HOST_TYPES = (torch.int64, torch.int32, torch.bool)


def dtype_from_attribute(op: Op, elem_type: int) -> torch.dtype:
    """Return the torch dtype an attribute names; refuse one that is not translated."""
    dtype = torch_dtype_from_onnx(elem_type)
    if dtype is None:
        raise op.refuse(f"element type {onnx_type_name(elem_type)} is not translated")
    return dtype


_CONSTANT_KINDS = ("value", "value_float", "value_floats", "value_int", "value_ints")


@converter("Constant", versions=(1, 9, 11, 12, 13, 19, 21, 23, 24, 25), attributes=_CONSTANT_KINDS)
def constant(op: Op) -> Constant:
    """A constant in the graph; named after its output."""
    name = op.proto.output[0]
    tensor = op.maybe_tensor("value")
    if tensor is not None:
        return constant_from_tensor(name, tensor)
    attribute = op.proto.attribute[0]
    value = onnx.helper.get_attribute_value(attribute)
    if "float" in attribute.name:
        return Constant(name, np.asarray(value, np.float32), torch.float32)
    return Constant(name, np.asarray(value, np.int64), torch.int64)


@converter("ConstantOfShape", versions=(9, 20, 21, 23, 24, 25), attributes=("value",))
def constant_of_shape(op: Op) -> Tensor | Host:
    """A tensor of one repeated value; small integer ones of fixed shape stay on the host."""
    given = op.maybe_tensor("value")
    fill = (
        Constant("fill", np.zeros(1, np.float32), torch.float32)
        if given is None
        else constant_from_tensor("fill", given)
    )
    sizes = op.ints(0)
    value = fill.array.reshape(()).item()
    static = [size for size in sizes if not isinstance(size, Sym)]
    on_host = len(static) == len(sizes) and fill.dtype in _HOST_TYPES
    if on_host and math.prod(static) <= MAX_HOST_ELEMENTS:
        return Host(np.full(static, value, dtype=object), fill.dtype)
    return emit_full(op, sizes, value, fill.dtype)


def emit_full(op: Op, sizes: list[HostInt], value: float, dtype: torch.dtype) -> Tensor:
    """Emit a tensor of one value on the graph's device."""
    graph = op.graph
    number = graph.number(value, dtype)
    node = graph.call(torch.full, sizes, number, dtype=graph.dtype(dtype), device=graph.device())
    return Tensor(node, dtype, tuple(sizes))


def _range_on_host(op: Op) -> Host | None:
    bounds = [op.number(index) for index in range(3)]
    if any(bound is None or isinstance(bound, Sym) for bound in bounds):
        return None
    items = range(*bounds)
    if len(items) > MAX_HOST_ELEMENTS:
        return None
    return Host(np.asarray(list(items), dtype=object), op.value(0).dtype)


@converter("Range", versions=(11, 27), attributes=("stash_type",), host=_range_on_host)
def range_(op: Op) -> Tensor:
    """start, start + delta, ... below limit; bounds are on the host."""
    dtype = op.value(0).dtype
    bounds = [op.number(index) for index in range(3)]
    if any(bound is None for bound in bounds):
        raise op.refuse("bounds are data of the call; they must be constant or come from shapes")
    start, limit, delta = bounds
    graph = op.graph
    if dtype in (torch.float16, torch.bfloat16) or (
        op.version >= 27 and op.attr_int("stash_type") != 1
    ):
        raise op.refuse("a range of 16-bit floats is not translated")
    if dtype.is_floating_point:
        # Elements are start + i * delta, as ONNX counts them.
        count = max(int(np.ceil((limit - start) / delta)), 0)
        steps = op.call(torch.arange, count, dtype=graph.dtype(dtype), device=graph.device())
        node = op.call(torch.add, op.call(torch.mul, steps, delta), start)
        return Tensor(node, dtype, (count,))
    node = op.call(torch.arange, start, limit, delta, dtype=dtype, device=graph.device())
    return Tensor(node, dtype, (_range_length(start, limit, delta),))


def _range_length(start: HostInt, limit: HostInt, delta: HostInt) -> HostInt | None:
    if start == 0 and delta == 1 and isinstance(limit, Sym) and limit.is_size:
        return limit
    if isinstance(start, Sym) or isinstance(limit, Sym) or isinstance(delta, Sym):
        return None
    return len(range(start, limit, delta))


@converter("EyeLike", versions=(9, 22), attributes=("dtype", "k"))
def eye_like(op: Op) -> Tensor:
    """Ones on diagonal k of a matrix of the input's sizes."""
    x, (rows, columns), graph = op.tensor(0), op.dims(0), op.graph
    elem_type = op.maybe_int("dtype")
    dtype = x.dtype if elem_type is None else dtype_from_attribute(op, elem_type)
    row = op.call(torch.unsqueeze, op.call(torch.arange, rows, device=graph.device()), 1)
    column = op.call(torch.arange, columns, device=graph.device())
    on_diagonal = op.call(torch.eq, op.call(torch.sub, column, row), op.attr_int("k"))
    return x.like(op.method("to", on_diagonal, graph.dtype(dtype)), dtype=dtype)


def _cast_on_host(op: Op) -> Host | None:
    return _host_cast(op, dtype_from_attribute(op, op.attr_int("to")))


def _host_cast(op: Op, dtype: torch.dtype) -> Host | None:
    data = op.host(0)
    symbolic = any(isinstance(item, Sym) for item in data.reshape(-1))
    if dtype not in _HOST_TYPES or (symbolic and torch.bool in (dtype, op.value(0).dtype)):
        return None
    if symbolic:
        return Host(data, dtype)
    kind = bool if dtype == torch.bool else int
    return Host(np.asarray(np.frompyfunc(kind, 1, 1)(data), dtype=object), dtype)


@converter(
    "Cast",
    versions=(6, 9, 13, 19, 21, 23, 24, 25, 28),
    # Both speak of 8-bit floats only, and those are refused as element types.
    attributes=("to", "saturate", "round_mode"),
    host=_cast_on_host,
)
def cast(op: Op) -> Tensor | Constant:
    """Change the element type."""
    return _emit_cast(op, dtype_from_attribute(op, op.attr_int("to")))


def _cast_like_on_host(op: Op) -> Host | None:
    return _host_cast(op, op.value(1).dtype)


@converter(
    "CastLike",
    versions=(15, 19, 21, 23, 24, 25),
    attributes=("saturate", "round_mode"),
    host=_cast_like_on_host,
)
def cast_like(op: Op) -> Tensor | Constant:
    """Change the element type to that of the second input."""
    return _emit_cast(op, op.value(1).dtype)


def _emit_cast(op: Op, dtype: torch.dtype) -> Tensor | Constant:
    given = op.value(0)
    if isinstance(given, Constant) and given.array.size == 1:
        # A scalar stays a constant, so that it can still be read as a number.
        array = tensor_sharing_memory(given.array).to(dtype)
        return Constant(f"{given.name}_cast", array_sharing_memory(array), dtype)
    x = op.tensor(0)
    if x.dtype == dtype:
        return x
    return x.like(op.method("to", x, op.graph.dtype(dtype)), dtype=dtype)
