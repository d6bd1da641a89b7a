"""Rotary position embedding.

Legend: B = batch, H = heads, T = tokens, D = head size.
"""

from __future__ import annotations

import operator

import torch
from torch.nn import functional

from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.registry import converter
from compiler_worker.onnx_to_fx.values import Tensor


@converter(
    "RotaryEmbedding",
    versions=(23,),
    attributes=("interleaved", "num_heads", "rotary_embedding_dim"),
)
def rotary_embedding(op: Op) -> Tensor:
    """Rotate pairs of the first `rotary_embedding_dim` features by position."""
    x = op.tensor(0)
    x_BHTD, heads_axis = _rotated_operand(op, x)
    cos, sin = (_rotary_table(op, index, heads_axis) for index in (1, 2))
    rotated_size = op.attr_int("rotary_embedding_dim")
    whole = (Ellipsis, slice(None, rotated_size or None))
    part = op.call(operator.getitem, x_BHTD, whole) if rotated_size else x_BHTD
    turned = _rotate(op, part, cos, sin)
    if rotated_size:
        rest = op.call(operator.getitem, x_BHTD, (Ellipsis, slice(rotated_size, None)))
        turned = op.call(torch.cat, [turned, rest], dim=-1)
    if x.rank == 3:
        turned = op.call(torch.reshape, turned, op.dims(0))
    return x.like(turned)


def _rotated_operand(op: Op, x: Tensor) -> tuple[torch.fx.Node, int]:
    """Return x by head and the axis its heads are on: 1 for rank 4, 2 for rank 3."""
    if x.rank == 4:
        return x.node, 1
    heads = op.attr_int("num_heads")
    if x.rank != 3 or not heads:
        raise op.refuse(f"input has rank {x.rank}, wanted 4, or 3 with num_heads")
    batch, length, width = op.dims(0)
    return op.call(torch.reshape, x, [batch, length, heads, width // heads]), 2


def _rotary_table(op: Op, index: int, heads_axis: int) -> torch.fx.Node:
    """Return cosines or sines as [B, 1, T, D / 2], or [B, T, 1, D / 2] for rank 3."""
    table = op.tensor(index)
    node = table.node
    if op.has(3):
        node = op.call(functional.embedding, op.tensor(3), table)
    return op.call(torch.unsqueeze, node, heads_axis)


def _rotate(op: Op, x: torch.fx.Node, cos: torch.fx.Node, sin: torch.fx.Node) -> torch.fx.Node:
    interleaved = bool(op.attr_int("interleaved"))
    if interleaved:
        first, second = (
            op.call(operator.getitem, x, (Ellipsis, slice(start, None, 2))) for start in (0, 1)
        )
    else:
        halves = op.call(torch.chunk, x, 2, dim=-1)
        first, second = (op.call(operator.getitem, halves, part) for part in (0, 1))

    def times(a: torch.fx.Node, b: torch.fx.Node) -> torch.fx.Node:
        return op.call(operator.mul, a, b)

    real = op.call(operator.sub, times(cos, first), times(sin, second))
    imaginary = op.call(operator.add, times(sin, first), times(cos, second))
    if not interleaved:
        return op.call(torch.cat, [real, imaginary], dim=-1)
    pairs = op.call(torch.stack, [real, imaginary], dim=-1)
    return op.call(torch.flatten, pairs, -2)
