"""Outputs that a loop stacks: one row per round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from compiler_worker.onnx_to_fx.control_flow.nested import NestedBuilder
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt
from compiler_worker.onnx_to_fx.values import AnyValue, HostValue, Tensor, Value


def stacked(op: Op, rows: Sequence[AnyValue]) -> Value:
    """Return rows along a new first axis, on the host where all of them are."""
    hosts = [row for row in rows if isinstance(row, HostValue)]
    if len(hosts) == len(rows) and all(row.dims == hosts[0].dims for row in hosts):
        return HostValue(np.stack([row.data for row in hosts]), hosts[0].dtype)
    tensors = [op.graph.tensor(op.as_tensor(row)) for row in rows]
    first = tensors[0]
    return Tensor(op.call(torch.stack, tensors), first.dtype, (len(rows), *first.dims))


def empty_stack(op: Op, row: Tensor, length: HostInt, inner: NestedBuilder) -> Tensor:
    """Return a stack [length, ...] of rows like `row`, [...], all of them zero.

    Args:
        op: the loop; the stack is made in its graph.
        row: of the first round; gives type and sizes.
        length: number of rows.
        inner: the graph that `row` is in.

    Raises:
        UnsupportedGraphError: a size of a row is not known outside of the loop.
    """
    sizes = [length, *(size for size in inner.outer_dims(row) if size is not None)]
    if len(sizes) <= row.rank:
        raise op.refuse("the size of a row that it stacks is known in the round only")
    graph = op.graph
    node = op.call(torch.zeros, sizes, dtype=graph.dtype(row.dtype), device=graph.device())
    return Tensor(node, row.dtype, tuple(sizes))
