"""Which attention runs on the kernel for short sequences.

Measured on an H200, 12 heads, 128 tokens, a mask of one row per entry: 4 to 14 microseconds,
where the best of torch's takes 7 to 15 and three kernels more to prepare its mask and operands.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from compiler_worker.fx_rewrites.editor import (
    NARROW,
    Editor,
    argument,
    aten,
    dtype_of,
    rank_of,
    shape_of,
)

# Longer ones repay what the library's kernels do before they begin.
MAX_KEYS = 512
_HEAD_SIZES = (16, 32, 64, 128)


def use_short_attention(editor: Editor) -> int:
    """Give attention over short static sequences to the kernel; the number of calls."""
    return sum(_rewrite(editor, n) for n in editor.calls(aten.scaled_dot_product_attention.default))


def _rewrite(editor: Editor, node: fx.Node) -> bool:
    q, k, v = node.args[:3]
    mask = argument(node, 3, "attn_mask")
    if not _is_plain(node) or not _fits(q, k, v) or not _is_mask(mask, q, k):
        return False
    # Defines the op; it needs Triton, which machines without a GPU may lack.
    from compiler_worker.fx_rewrites import attention_kernel  # noqa: F401

    scale = argument(node, 6, "scale")
    scale = 1 / math.sqrt(int(shape_of(q)[3])) if scale is None else float(scale)
    target = torch.ops.smelt.attention.default
    editor.replace(node, editor.call(node, target, q, k, v, mask, scale))
    return True


def _is_plain(node: fx.Node) -> bool:
    options = ((4, "dropout_p"), (5, "is_causal"), (7, "enable_gqa"))
    return not any(argument(node, index, name) for index, name in options)


def _fits(q: Any, k: Any, v: Any) -> bool:
    shapes = [shape_of(each) for each in (q, k, v)]
    if any(len(shape) != 4 or not _is_static(shape) for shape in shapes):
        return False
    dtypes = {dtype_of(each) for each in (q, k, v)}
    is_narrow = len(dtypes) == 1 and dtypes <= {*NARROW}
    (batch, heads, _, size), k_shape, v_shape = shapes
    is_one = k_shape == v_shape and k_shape[:2] == (batch, heads) and k_shape[3] == size
    return is_narrow and is_one and size in _HEAD_SIZES and int(k_shape[2]) <= MAX_KEYS


def _is_mask(mask: Any, q: Any, k: Any) -> bool:
    if mask is None:
        return True
    wanted = (*shape_of(q)[:3], shape_of(k)[2])
    if rank_of(mask) != 4 or dtype_of(mask) not in (torch.bool, dtype_of(q)):
        return False
    return all(size in (1, want) for size, want in zip(shape_of(mask), wanted, strict=True))


def _is_static(shape: tuple[Any, ...]) -> bool:
    return all(isinstance(size, int) for size in shape)
