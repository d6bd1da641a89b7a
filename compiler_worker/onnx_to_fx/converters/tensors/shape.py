"""Ops that read or change shapes: where device and host exchange values."""

import operator

import numpy as np
import torch

from compiler_worker.onnx_to_fx.control_flow.unrolled import host_scalar
from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.dtypes import CARRIED
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym, known_equal, left_over, product
from compiler_worker.onnx_to_fx.values import (
    AnyValue,
    Dims,
    HostValue,
    Tensor,
    host_from_list,
    unknown,
)

_TYPES_ONLY = (21, 23, 24, 25)


@converter("Shape", versions=(1, 13, 15, 19, *_TYPES_ONLY), carried=CARRIED)
def shape(op: Op) -> HostValue:
    """Sizes of the axes in [start, end), on the host."""
    dims = op.dims(0)
    if op.version < 15:
        return host_from_list(dims)
    return host_from_list(dims[op.attr_int("start") : op.maybe_int("end")])


@converter("Size", versions=(1, 13, 19, *_TYPES_ONLY), carried=CARRIED)
def size(op: Op) -> HostValue:
    """Number of elements, on the host."""
    return host_scalar(product(op.dims(0)))


@converter("Identity", versions=(1, 13, 14, 16, 19, *_TYPES_ONLY), carried=CARRIED)
def identity(op: Op) -> AnyValue:
    """The value itself, on the host or on the device as it is."""
    return op.any_value(0)


def _reshape_on_host(op: Op) -> HostValue | None:
    data = op.host(0)
    sizes = op.ints(1)
    if any(isinstance(size, Sym) or size == 0 for size in sizes):
        return None
    return HostValue(data.reshape(op.static_ints(1)), op.value(0).dtype)


@converter(
    "Reshape", versions=(5, 13, 14, 19, *_TYPES_ONLY), host=_reshape_on_host, carried=CARRIED
)
def reshape(op: Op) -> Tensor:
    """New sizes; 0 copies the input's unless allowzero, -1 is what is left."""
    x = op.tensor(0)
    sizes = op.ints(1)
    copies = op.version < 14 or not op.attr_int("allowzero")
    if copies:
        sizes = [_copied(op, x, axis, size) for axis, size in enumerate(sizes)]
    sizes = _with_rest(x, sizes)
    if copies:
        sizes = [_copied_in_call(op, x, axis, size) for axis, size in enumerate(sizes)]
    dims = tuple(None if size == -1 else size for size in sizes)
    return Tensor(op.call(torch.reshape, x, sizes), x.dtype, dims)


def _with_rest(x: Tensor, sizes: list[HostInt]) -> list[HostInt]:
    """Replace the -1 by what is left, where that is the same in every call."""
    total = [size for size in x.dims if size is not None]
    if -1 not in sizes or len(total) < x.rank:
        return sizes
    rest = left_over(total, [size for size in sizes if size != -1])
    return [rest if size == -1 and rest is not None else size for size in sizes]


def _copied(op: Op, x: Tensor, axis: int, size: HostInt) -> HostInt:
    if isinstance(size, Sym) or size != 0:
        return size
    if axis >= x.rank:
        raise op.refuse(f"size 0 at axis {axis} copies an axis the rank-{x.rank} input has not")
    return op.graph.dim(x, axis)


def _copied_in_call(op: Op, x: Tensor, axis: int, size: HostInt) -> HostInt:
    """Return a size that may turn out to be 0 in a call, and copies the input's then."""
    if not isinstance(size, Sym) or axis >= x.rank:
        return size
    own = op.graph.dim(x, axis)
    return size if size == own else size.apply(_own_if_zero, size, own, is_size=size.is_size)


def _own_if_zero(size: int, own: int) -> int:
    return own if size == 0 else size


@converter("Flatten", versions=(1, 9, 11, 13, *_TYPES_ONLY), carried=CARRIED)
def flatten(op: Op) -> Tensor:
    """Two axes: all before `axis`, and all from it on; raises UnsupportedGraphError."""
    x = op.tensor(0)
    sizes = op.dims(0)
    axis = op.attr_int("axis")
    if not -x.rank <= axis <= x.rank:
        raise op.refuse(f"axis {axis} is outside rank {x.rank}")
    axis = axis + x.rank if axis < 0 else axis
    target = [product(sizes[:axis]), product(sizes[axis:])]
    return Tensor(op.call(torch.reshape, x, target), x.dtype, tuple(target))


def _axes(op: Op) -> list[int] | None:
    """Axes from the attribute (before 13) or the input; None where not given."""
    if op.version < 13:
        return op.maybe_ints("axes")
    return op.static_ints(1) if op.has(1) else None


def _unsqueezed_axes(op: Op, rank: int) -> list[int]:
    axes = _axes(op)
    if axes is None:
        raise op.refuse("axes are required and missing")
    return sorted(op.axis(axis, rank + len(axes)) for axis in axes)


def _unsqueeze_on_host(op: Op) -> HostValue:
    data = op.host(0)
    axes = _unsqueezed_axes(op, data.ndim)
    return HostValue(np.expand_dims(data, tuple(axes)), op.value(0).dtype)


@converter(
    "Unsqueeze", versions=(1, 11, 13, *_TYPES_ONLY), host=_unsqueeze_on_host, carried=CARRIED
)
def unsqueeze(op: Op) -> Tensor:
    """Insert axes of size 1."""
    result = op.tensor(0)
    for axis in _unsqueezed_axes(op, result.rank):
        dims = (*result.dims[:axis], 1, *result.dims[axis:])
        result = Tensor(op.call(torch.unsqueeze, result, axis), result.dtype, dims)
    return result


def _squeezed_axes(op: Op, dims: Dims) -> list[int]:
    axes = _axes(op)
    if axes is not None:
        return [op.axis(axis, len(dims)) for axis in axes]
    if any(not isinstance(size, int) for size in dims):
        raise op.refuse("without axes the rank of the result would depend on the call's shapes")
    return [axis for axis, size in enumerate(dims) if size == 1]


def _squeeze_on_host(op: Op) -> HostValue:
    data = op.host(0)
    return HostValue(np.squeeze(data, tuple(_squeezed_axes(op, data.shape))), op.value(0).dtype)


@converter("Squeeze", versions=(1, 11, 13, *_TYPES_ONLY), host=_squeeze_on_host, carried=CARRIED)
def squeeze(op: Op) -> Tensor:
    """Remove axes of size 1; a reshape, which fails where the size is another one."""
    x = op.tensor(0)
    sizes = op.dims(0)
    gone = _squeezed_axes(op, x.dims)
    kept = [size for axis, size in enumerate(sizes) if axis not in gone]
    return Tensor(op.call(torch.reshape, x, kept), x.dtype, tuple(kept))


@converter("Expand", versions=(8, 13), carried=CARRIED)
def expand(op: Op) -> Tensor:
    """Broadcast with a shape, both ways: either side may hold the 1."""
    x = op.tensor(0)
    wanted = op.ints(1)
    rank = max(x.rank, len(wanted))
    own = [*_ones(rank - x.rank), *op.dims(0)]
    wanted = [*_ones(rank - len(wanted)), *wanted]
    sizes = [_expanded(have, want) for have, want in zip(own, wanted, strict=True)]
    known = [size for size in sizes if size is not None]
    if len(known) == rank:
        # Inductor folds an expanded constant without axes to a number, and then refuses it
        # as an index (torch 2.13, freezing); one axis keeps it a tensor.
        source = op.call(torch.reshape, x, [1]) if rank > x.rank == 0 else x
        return Tensor(op.method("expand", source, known), x.dtype, tuple(known))
    # Which side is 1 is known only in the call: let broadcasting find out, without memory.
    pattern = op.method("expand", op.method("new_empty", x, ()), wanted)
    both = op.call(torch.broadcast_tensors, x, pattern)
    return Tensor(op.call(operator.getitem, both, 0), x.dtype, unknown(rank))


def _ones(count: int) -> list[HostInt]:
    return [1] * count


def _expanded(have: HostInt, want: HostInt) -> HostInt | None:
    """Return the size of one axis after expansion, None where that is dynamic."""
    if not isinstance(want, Sym) and want == 1:
        return have
    if not isinstance(have, Sym) and have == 1:
        return want
    if known_equal(have, want) or not isinstance(want, Sym):
        return want
    return have if not isinstance(have, Sym) else None


@converter("Tile", versions=(6, 13), carried=CARRIED)
def tile(op: Op) -> Tensor:
    """Repeat along each axis."""
    x = op.tensor(0)
    repeats = op.ints(1)
    sizes = [size * count for size, count in zip(op.dims(0), repeats, strict=True)]
    return Tensor(op.method("repeat", x, repeats), x.dtype, tuple(sizes))
