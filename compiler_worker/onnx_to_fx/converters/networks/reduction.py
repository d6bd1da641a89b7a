"""Reductions over axes."""

from collections.abc import Callable
from functools import partial
from operator import getitem, sub
from typing import Any

import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import Dims, Tensor

# Emits a reduction of x over axes; the arguments are (op, x, axes, keepdims).
Reduce = Callable[[Op, Tensor, list[int], bool], torch.fx.Node]


def reduced_dims(dims: Dims, axes: list[int], keepdims: bool) -> Dims:
    """Return the dims of a reduction's result.

    Args:
        dims: of the input.
        axes: non-negative.
        keepdims: reduced axes stay, with size 1.
    """
    if keepdims:
        return tuple(1 if axis in axes else size for axis, size in enumerate(dims))
    return tuple(size for axis, size in enumerate(dims) if axis not in axes)


def _sum(op: Op, x: Tensor, axes: list[int], keepdim: bool) -> torch.fx.Node:
    # The type is named as torch sums small integers in int64 otherwise.
    return op.call(torch.sum, x, axes, keepdim=keepdim, dtype=op.graph.dtype(x.dtype))


def _mean(op: Op, x: Tensor, axes: list[int], keepdim: bool) -> torch.fx.Node:
    if not x.is_float:
        raise op.refuse("the mean of integers is not translated")
    return op.call(torch.mean, x, axes, keepdim=keepdim)


def _prod(op: Op, x: Tensor, axes: list[int], keepdim: bool) -> torch.fx.Node:
    node = x.node
    # torch multiplies along one axis at a time; the last first, so that the others keep their
    # places.
    for axis in sorted(axes, reverse=True):
        node = op.call(torch.prod, node, axis, keepdim=keepdim, dtype=op.graph.dtype(x.dtype))
    return node


def _extreme(function: Callable[..., Any]) -> Reduce:
    def reduce(op: Op, x: Tensor, axes: list[int], keepdim: bool) -> torch.fx.Node:
        if any(x.dims[axis] == 0 for axis in axes):
            return _extreme_of_nothing(op, x, axes, keepdim, largest=function is torch.amax)
        return op.call(function, x, axes, keepdim=keepdim)

    return reduce


def _extreme_of_nothing(
    op: Op, x: Tensor, axes: list[int], keepdim: bool, *, largest: bool
) -> torch.fx.Node:
    """The maximum over no elements is the least value of the type, and the other way round."""
    if x.dtype == torch.bool:
        value: float = not largest
    elif x.is_float:
        value = float("-inf" if largest else "inf")
    else:
        limits = torch.iinfo(x.dtype)
        value = limits.min if largest else limits.max
    sizes = [op.graph.dim(x, axis) for axis in range(x.rank)]
    kept = [1 if axis in axes else size for axis, size in enumerate(sizes)]
    if not keepdim:
        kept = [size for axis, size in enumerate(sizes) if axis not in axes]
    return op.method("new_full", x, kept, value)


def _l1(op: Op, x: Tensor, axes: list[int], keepdim: bool) -> torch.fx.Node:
    return _sum(op, x.like(op.call(torch.abs, x)), axes, keepdim)


def _sum_square(op: Op, x: Tensor, axes: list[int], keepdim: bool) -> torch.fx.Node:
    return _sum(op, x.like(op.call(torch.mul, x, x)), axes, keepdim)


def _l2(op: Op, x: Tensor, axes: list[int], keepdim: bool) -> torch.fx.Node:
    if not x.is_float:
        raise op.refuse("the L2 norm of integers is not translated")
    return op.call(torch.linalg.vector_norm, x, 2, axes, keepdim=keepdim)


def _log_sum(op: Op, x: Tensor, axes: list[int], keepdim: bool) -> torch.fx.Node:
    if not x.is_float:
        raise op.refuse("the logarithm of integers is not translated")
    return op.call(torch.log, _sum(op, x, axes, keepdim))


def _log_sum_exp(op: Op, x: Tensor, axes: list[int], keepdim: bool) -> torch.fx.Node:
    if not x.is_float:
        raise op.refuse("the logarithm of integers is not translated")
    return op.call(torch.logsumexp, x, axes, keepdim=keepdim)


def _reduction(reduce: Reduce, axes_input_since: int) -> Callable[[Op], Tensor]:
    def convert(op: Op) -> Tensor:
        x = op.tensor(0)
        axes = _axes(op, x.rank, axes_input_since)
        if axes is None:
            return x
        keepdims = bool(op.attr_int("keepdims"))
        if not axes:
            # No axis is left to reduce, but the elements still change (abs, square, log).
            wide = Tensor(op.call(torch.unsqueeze, x, 0), x.dtype, (1, *x.dims))
            return x.like(reduce(op, wide, [0], False))
        return Tensor(reduce(op, x, axes, keepdims), x.dtype, reduced_dims(x.dims, axes, keepdims))

    return convert


def _axes(op: Op, rank: int, axes_input_since: int) -> list[int] | None:
    """Return non-negative axes, [] for none of them, None for the input unchanged."""
    from_input = op.version >= axes_input_since
    given = op.maybe_ints("axes") or []
    if from_input and op.has(1):
        given = op.static_ints(1)
    if not given and from_input and op.attr_int("noop_with_empty_axes"):
        return [] if op.proto.op_type not in _UNCHANGED_BY_NO_AXES else None
    if not given:
        return list(range(rank))
    return [op.axis(axis, rank) for axis in given]


_UNCHANGED_BY_NO_AXES = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")

_REDUCTIONS: dict[str, tuple[Reduce, tuple[int, ...], int]] = {
    "ReduceL1": (_l1, (1, 11, 13, 18), 18),
    "ReduceL2": (_l2, (1, 11, 13, 18), 18),
    "ReduceLogSum": (_log_sum, (1, 11, 13, 18, 28), 18),
    "ReduceLogSumExp": (_log_sum_exp, (1, 11, 13, 18, 28), 18),
    "ReduceMax": (_extreme(torch.amax), (1, 11, 12, 13, 18, 20), 18),
    "ReduceMean": (_mean, (1, 11, 13, 18), 18),
    "ReduceMin": (_extreme(torch.amin), (1, 11, 12, 13, 18, 20), 18),
    "ReduceProd": (_prod, (1, 11, 13, 18), 18),
    "ReduceSum": (_sum, (1, 11, 13), 13),
    "ReduceSumSquare": (_sum_square, (1, 11, 13, 18), 18),
}
for _name, (_reduce, _versions, _since) in _REDUCTIONS.items():
    converter(_name, versions=_versions)(_reduction(_reduce, _since))


def _arg_extreme(function: Callable[..., Any]) -> Callable[[Op], Tensor]:
    def convert(op: Op) -> Tensor:
        x = op.tensor(0)
        axis = op.axis(op.attr_int("axis"), x.rank)
        keepdims = bool(op.attr_int("keepdims"))
        last = op.version >= 12 and op.attr_int("select_last_index")
        # torch names the first of equal ones: the last is the first from behind.
        source = op.call(torch.flip, x, [axis]) if last else x.node
        node = op.call(function, source, dim=axis, keepdim=keepdims)
        if last:
            node = op.call(sub, op.graph.dim(x, axis) - 1, node)
        return Tensor(node, torch.int64, reduced_dims(x.dims, [axis], keepdims))

    return convert


converter("ArgMax", versions=(1, 11, 12, 13))(_arg_extreme(torch.argmax))
converter("ArgMin", versions=(1, 11, 12, 13))(_arg_extreme(torch.argmin))


def _cumulative(op: Op, function: Callable[..., Any], neutral: Callable[..., Any]) -> Tensor:
    """Run along an axis, from either end, with or without the element itself."""
    x = op.tensor(0)
    axis = op.axis(op.static_ints(1)[0], x.rank)
    source = x.node
    if op.attr_int("reverse"):
        source = op.call(torch.flip, source, [axis])
    before = source
    if op.attr_int("exclusive"):
        # Shifted by one rather than subtracted afterwards: inf - inf would be NaN.
        whole = (slice(None),) * axis
        zero = op.call(neutral, op.call(getitem, source, (*whole, slice(0, 1))))
        rest = op.call(getitem, source, (*whole, slice(0, -1)))
        before = op.call(torch.cat, [zero, rest], dim=axis)
    # Inductor answers int64 for integers where all elements are one value, whatever is named here.
    wide = x.dtype if x.is_float else torch.int64
    node = op.call(function, before, axis, dtype=op.graph.dtype(wide))
    if wide != x.dtype:
        node = op.method("to", node, op.graph.dtype(x.dtype))
    if op.attr_int("reverse"):
        node = op.call(torch.flip, node, [axis])
    return x.like(node)


for _name, _versions, _pair in (
    ("CumSum", (11, 14), (torch.cumsum, torch.zeros_like)),
    ("CumProd", (26,), (torch.cumprod, torch.ones_like)),
):
    converter(_name, versions=_versions)(partial(_cumulative, function=_pair[0], neutral=_pair[1]))
