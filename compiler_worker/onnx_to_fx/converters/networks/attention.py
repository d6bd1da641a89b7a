"""Scaled dot-product attention.

Legend: B = batch, H = query heads, G = key/value heads, Q = queries, K = keys,
D = head size, E = value head size.
"""

from __future__ import annotations

import onnx
import torch
from torch.nn import functional

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.converters.networks.attention_explicit import (
    Heads,
    explicit_attention,
)
from compiler_worker.onnx_to_fx.converters.networks.attention_mask import MaskSizes, attention_mask
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import Tensor


@converter("Attention", versions=(23, 24, 25))
def attention(op: Op) -> list[Tensor | None]:
    """Attention with grouped heads, cache, masks; a row that may attend nothing gives zeros."""
    heads, span = _heads(op)
    scores: Tensor | None = None
    if op.has_output(3) or op.attr_float("softcap") or not _is_kernel_precise(op, heads.q.dtype):
        y_BHQE, scores_BHQK = explicit_attention(op, heads, attention_mask(op, span))
        keys = span.keys
        scores = Tensor(scores_BHQK, heads.q.dtype, (*heads.q.dims[:3], keys))
    else:
        y_BHQE = _fused(op, heads, span)
    y = Tensor(y_BHQE, heads.q.dtype, (*heads.q.dims[:3], heads.v.dims[3]))
    return [_like_query(op, y), heads.k, heads.v, scores]


def _is_kernel_precise(op: Op, dtype: torch.dtype) -> bool:
    """Whether torch's kernel keeps the softmax as wide as asked: float32 or the operands' type."""
    narrow = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT)
    precision = op.maybe_int("softmax_precision")
    return precision is None or precision in narrow or dtype == torch.float64


def _heads(op: Op) -> tuple[Heads, MaskSizes]:
    q = _by_head(op, 0, "q_num_heads")
    k_new = _by_head(op, 1, "kv_num_heads")
    v_new = _by_head(op, 2, "kv_num_heads")
    k, v = (_with_past(op, new, index) for new, index in ((k_new, 4), (v_new, 5)))
    lengths = op.maybe(6)
    if lengths is not None and op.has(4):
        raise op.refuse("nonpad_kv_seqlen together with past_key")
    past = op.dims(4)[2] if op.has(4) else 0
    span = MaskSizes(op.graph.dim(q, 2), op.graph.dim(k, 2), past, lengths)
    return Heads(q, k, v, _group_size(q, k)), span


def _group_size(q: Tensor, k: Tensor) -> int | None:
    q_heads = q.dims[1]
    kv_heads = k.dims[1]
    if q_heads is not None and q_heads == kv_heads:
        return 1
    if isinstance(q_heads, int) and isinstance(kv_heads, int):
        return q_heads // kv_heads
    return None


def _by_head(op: Op, index: int, heads_attribute: str) -> Tensor:
    """Return an operand as [B, heads, length, size]; rank 3 holds the heads side by side."""
    x = op.tensor(index)
    if x.rank == 4:
        return x
    heads = op.maybe_int(heads_attribute)
    if x.rank != 3 or heads is None:
        raise op.refuse(f"input {index} has rank {x.rank}, wanted 4, or 3 with {heads_attribute}")
    batch, length, width = op.dims(index)
    sizes = [batch, length, heads, width // heads]
    split = op.call(torch.reshape, x, sizes)
    b, t, h, d = sizes
    return Tensor(op.call(torch.transpose, split, 1, 2), x.dtype, (b, h, t, d))


def _with_past(op: Op, new: Tensor, index: int) -> Tensor:
    past = op.maybe(index)
    if past is None:
        return new
    return new.resized(op.call(torch.cat, [past, new], dim=2), 2, None)


def _fused(op: Op, heads: Heads, span: MaskSizes) -> torch.fx.Node:
    options: dict[str, object] = {}
    scale = op.maybe_float("scale")
    if scale is not None:
        options["scale"] = scale
    if heads.group != 1:
        options["enable_gqa"] = True
    if _is_plainly_causal(op):
        # torch's own causal kernel counts from the first key, as ONNX does without a cache.
        options["is_causal"] = True
    else:
        options["attn_mask"] = attention_mask(op, span)
    return op.call(functional.scaled_dot_product_attention, heads.q, heads.k, heads.v, **options)


def _is_plainly_causal(op: Op) -> bool:
    unwindowed = op.version < 25 or op.attr_int("left_window_size") < 0
    others = op.has(3) or op.has(4) or op.has(6)
    return bool(op.attr_int("is_causal")) and unwindowed and not others


def _like_query(op: Op, y: Tensor) -> Tensor:
    """Put heads side by side again where the query came so."""
    if len(op.value(0).dims) == 4:
        return y
    merged = op.call(torch.flatten, op.call(torch.transpose, y, 1, 2), 2, 3)
    heads = y.dims[1]
    size = y.dims[3]
    width = None if heads is None or size is None else heads * size
    return Tensor(merged, y.dtype, (y.dims[0], y.dims[2], width))
