"""Attention step by step, for what the fused kernel cannot do or does not show.

Legend: B = batch, H = query heads, G = key/value heads, Q = queries, K = keys,
D = head size, E = value head size.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch

from compiler_worker.onnx_to_fx.dtypes import torch_dtype_from_onnx
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import Sym
from compiler_worker.onnx_to_fx.values import Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """Operands by head: q [B, H, Q, D], k [B, G, K, D], v [B, G, K, E], past included."""

    q: Tensor
    k: Tensor
    v: Tensor
    # Query heads per key/value head, None where that is dynamic.
    group: int | None


def explicit_attention(
    op: Op, heads: Heads, mask: Tensor | None
) -> tuple[torch.fx.Node, torch.fx.Node]:
    """Return the result [B, H, Q, E] and the scores [B, H, Q, K] of the stage the node asks for.

    Args:
        op: the node.
        heads: q [B, H, Q, D], k [B, G, K, D] and v [B, G, K, E].
        mask: bool or added to the scores, broadcasts to [B, H, Q, K]; None attends every key.

    Raises:
        UnsupportedGraphError: the node asks for a stage that is none of ONNX's four.
    """
    k, v = _repeated(op, heads)
    raw = op.call(torch.matmul, op.call(operator.mul, heads.q, _scale(op, heads)), k)
    capped = _capped(op, raw)
    masked = _masked(op, capped, mask)
    weights = _weights(op, masked, heads.q.dtype, is_masked=mask is not None)
    stages = (raw, capped, masked, weights)
    mode = op.attr_int("qk_matmul_output_mode")
    if not 0 <= mode < len(stages):
        raise op.refuse(f"qk_matmul_output_mode {mode} is not translated")
    return op.call(torch.matmul, weights, v), stages[mode]


def _repeated(op: Op, heads: Heads) -> tuple[torch.fx.Node, torch.fx.Node]:
    """Return keys transposed [B, H, D, K] and values [B, H, K, E], one per query head."""
    k = heads.k.node
    v = heads.v.node
    if heads.group != 1:
        k, v = (_per_query_head(op, heads, x) for x in (heads.k, heads.v))
    return op.call(torch.transpose, k, -2, -1), v


def _per_query_head(op: Op, heads: Heads, x: Tensor) -> torch.fx.Node:
    """Repeat each head of [B, G, K, D] for the query heads that share it."""
    count = op.graph.dim(heads.q, 1)
    sizes = [op.graph.dim(x, axis) for axis in range(x.rank)]
    # Query heads of one group stand side by side: [G, H / G], not [H / G, G].
    alike = [-1, -1, count // sizes[1], -1, -1]
    wide = op.method("expand", op.call(torch.unsqueeze, x, 2), alike)
    return op.call(torch.reshape, wide, [sizes[0], count, *sizes[2:]])


def _scale(op: Op, heads: Heads) -> float | torch.fx.Node:
    scale = op.maybe_float("scale")
    if scale is not None:
        return scale
    size = op.graph.dim(heads.q, 3)
    if isinstance(size, Sym):
        return op.graph.shared(operator.truediv, 1.0, op.graph.shared(torch.sym_sqrt, size))
    # Heads without elements have sums of nothing, whatever scales them.
    return float(max(size, 1) ** -0.5)


def _capped(op: Op, scores: torch.fx.Node) -> torch.fx.Node:
    softcap = op.attr_float("softcap")
    if not softcap:
        return scores
    squashed = op.call(torch.tanh, op.call(operator.truediv, scores, softcap))
    return op.call(operator.mul, squashed, softcap)


def _masked(op: Op, scores: torch.fx.Node, mask: Tensor | None) -> torch.fx.Node:
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return op.call(torch.where, mask, scores, float("-inf"))
    return op.call(operator.add, scores, mask)


def _weights(
    op: Op, scores: torch.fx.Node, dtype: torch.dtype, *, is_masked: bool
) -> torch.fx.Node:
    precision = op.maybe_int("softmax_precision")
    wide = dtype if precision is None else torch_dtype_from_onnx(precision)
    if wide is None:
        raise op.refuse(f"softmax_precision {precision} is not translated")
    source = scores if wide == dtype else op.method("to", scores, op.graph.dtype(wide))
    weights = op.call(torch.softmax, source, dim=-1)
    if is_masked:
        # Where nothing may be attended, softmax of all -inf is NaN and ONNX wants zeros.
        blocked = op.call(torch.isneginf, op.call(torch.amax, scores, [-1], keepdim=True))
        weights = op.call(torch.where, blocked, 0.0, weights)
    return weights if wide == dtype else op.method("to", weights, op.graph.dtype(dtype))
