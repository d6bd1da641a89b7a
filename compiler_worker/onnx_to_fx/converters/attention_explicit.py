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
from compiler_worker.onnx_to_fx.values import Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """Operands by head: q [B, H, Q, D], k [B, G, K, D], v [B, G, K, E], past included."""

    q: Tensor
    k: Tensor
    v: Tensor
    # Query heads per key/value head, None where only the call knows.
    group: int | None


def explicit_attention(
    op: Op, heads: Heads, mask: Tensor | None
) -> tuple[torch.fx.Node, torch.fx.Node]:
    """Return the result [B, H, Q, E] and the scores [B, H, Q, K] of the stage the node asks for."""
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
    if heads.group is None:
        raise op.refuse("the number of heads must be static where the fused kernel does not serve")
    k, v = heads.k.node, heads.v.node
    if heads.group > 1:
        k, v = (op.call(torch.repeat_interleave, x, heads.group, dim=1) for x in (k, v))
    return op.call(torch.transpose, k, -2, -1), v


def _scale(op: Op, heads: Heads) -> float:
    scale = op.maybe_float("scale")
    if scale is not None:
        return scale
    size = heads.q.static[3]
    if size is None:
        raise op.refuse("the head size must be static where the fused kernel does not serve")
    return float(size**-0.5)


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
