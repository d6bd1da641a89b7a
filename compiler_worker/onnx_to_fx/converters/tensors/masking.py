"""Ops that choose or mask elements: top k, one-hot, triangles, clipping."""

import operator
from typing import Any

import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.converters.elementwise.unsigned import ordered
from compiler_worker.onnx_to_fx.dtypes import WIDE_UNSIGNED
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym
from compiler_worker.onnx_to_fx.values import Tensor


@converter("Clip", versions=(6, 11, 12, 13))
def clip(op: Op) -> Tensor:
    """Limit values; bounds that are computed come in as tensors."""
    x = op.tensor(0)
    if op.version < 11:
        low = op.attr_float("min")
        high = op.attr_float("max")
        number = op.graph.number
        return x.like(op.call(torch.clamp, x, number(low, x.dtype), number(high, x.dtype)))
    node = x.node
    for index, function in ((1, torch.maximum), (2, torch.minimum)):
        if op.has(index):
            node = _bounded(op, node, index, function)
    return x.like(node)


def _bounded(op: Op, x: torch.fx.Node, index: int, function: Any) -> torch.fx.Node:
    number = op.number(index)
    if number is None:
        return op.call(function, x, op.tensor(index))
    side = "min" if function is torch.maximum else "max"
    return op.call(torch.clamp, x, **{side: number})


@converter("TopK", versions=(1, 10, 11, 24), carried=WIDE_UNSIGNED)
def top_k(op: Op) -> tuple[Tensor, Tensor]:
    """The k largest or smallest along an axis, ties to the lower index."""
    x = op.tensor(0)
    axis = op.axis(op.attr_int("axis"), x.rank)
    k: HostInt = op.attr_int("k") if op.version < 10 else op.ints(1)[0]
    largest = op.version < 11 or bool(op.attr_int("largest"))
    # A stable sort, as torch.topk promises no order among equal elements.
    pair = op.call(torch.sort, ordered(op, x), dim=axis, descending=largest, stable=True)
    values, positions = (
        op.call(torch.narrow, op.call(operator.getitem, pair, part), axis, 0, k) for part in (0, 1)
    )
    found = x.resized(values, axis, k)
    return found.like(ordered(op, found)), found.like(positions, dtype=torch.int64)


@converter("OneHot", versions=(9, 11, 28))
def one_hot(op: Op) -> Tensor:
    """A new axis that is `on` at the index and `off` elsewhere.

    Raises UnsupportedGraphError for a depth that is computed on the device.
    """
    index = op.tensor(0)
    values = op.tensor(2)
    depth = op.number(1)
    if depth is None:
        raise op.refuse("depth depends on input values; make it constant or derive it from Shape")
    depth = depth if isinstance(depth, Sym) else int(depth)
    axis = op.axis(op.attr_int("axis"), index.rank + 1)
    classes = op.call(torch.arange, depth, device=op.graph.device())
    shape = [-1 if position == axis else 1 for position in range(index.rank + 1)]
    classes = op.call(torch.reshape, classes, shape)
    whole = op.method("to", index, torch.int64)
    wanted = op.call(torch.unsqueeze, _in_range(op, whole, depth), axis)
    hit = op.call(torch.eq, wanted, classes)
    off, on = (op.call(torch.select, values, 0, part) for part in (0, 1))
    dims = (*index.dims[:axis], depth, *index.dims[axis:])
    return Tensor(op.call(torch.where, hit, on, off), values.dtype, dims)


def _in_range(op: Op, index: torch.fx.Node, depth: HostInt) -> torch.fx.Node:
    """Count negative indices from the end; those outside stay outside and match no class."""
    shifted = op.call(operator.add, index, depth)
    return op.call(torch.where, op.call(operator.lt, index, 0), shifted, index)


@converter("Trilu", versions=(14,), carried=WIDE_UNSIGNED)
def trilu(op: Op) -> Tensor:
    """Keep one triangle of the last two axes; raises UnsupportedGraphError if k is dynamic."""
    x = op.tensor(0)
    diagonal = op.number(1) if op.has(1) else 0
    if diagonal is None or isinstance(diagonal, Sym):
        raise op.refuse("the diagonal must be constant")
    function = torch.triu if op.attr_int("upper") else torch.tril
    return x.like(op.call(function, x, int(diagonal)))


@converter("Hardmax", versions=(13,))
def hardmax(op: Op) -> Tensor:
    """One at the first maximum along an axis, zero elsewhere."""
    x = op.tensor(0)
    axis = op.axis(op.attr_int("axis"), x.rank)
    best = op.call(torch.argmax, x, dim=axis, keepdim=True)
    zeros = op.call(torch.zeros_like, x)
    return x.like(op.call(torch.scatter, zeros, axis, best, 1.0))


@converter("Dropout", versions=(7, 10, 12, 13, 22))
def dropout(op: Op) -> tuple[Tensor, Tensor | None]:
    """The identity: every element is kept, so the mask is all true.

    Raises UnsupportedGraphError for training with a ratio over 0, whose result is random.
    """
    x = op.tensor(0)
    # What drops nothing is the same in training.
    if op.has(2) and op.number(2) is not False and op.number(1) != 0:
        raise op.refuse("what training drops is random; only inference or ratio 0 is translated")
    if not op.has_output(1):
        return x, None
    dtype = torch.bool if op.version >= 10 else x.dtype
    return x, x.like(op.call(torch.ones_like, x, dtype=op.graph.dtype(dtype)), dtype=dtype)
