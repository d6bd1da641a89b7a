"""Values rounded to eight bits, as exported graphs have them written out op by op.

Legend: q = eight-bit integers, s = scale, z = zero point; x is about (q - z) * s.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.ao.quantization.fx._decomposed  # defines the ops of quantized_decomposed
from torch import fx

from compiler_worker.fx_rewrites.editor import RESHAPES, Editor, aten, dtype_of, is_call

decomposed = torch.ops.quantized_decomposed
INT8 = (-128, 127)
UINT8 = (0, 255)
_LIMITS: dict[torch.dtype | None, tuple[int, int]] = {torch.int8: INT8, torch.uint8: UINT8}
# oneDNN's products take unsigned bytes on the left: with signed ones, whose weights torch arranges
# without the correction that they need, each product ran 8,000 times longer, as a reference loop.
_SHIFT = 128


class Dequantised(NamedTuple):
    """`(q - z) * s`: q a node, s and z constants that broadcast with it."""

    q: fx.Node
    scale: torch.Tensor
    zero: torch.Tensor


class Quantised(NamedTuple):
    """`clamp(round(x / s) + z)`: x a node, s and z of one element."""

    x: fx.Node
    scale: float
    zero: int


def share_rounding(editor: Editor) -> int:
    """Write each value that is rounded and brought back as two calls; the number of them.

    The integers become unsigned: all of them, and their zero point, move up by 128.
    """
    rounded: dict[fx.Node, fx.Node] = {}
    num_found = 0
    for node in editor.calls(aten.mul.Tensor):
        back = dequantised(editor, node)
        found = _quantised(editor, back.q) if back else None
        if back is None or found is None or not _is_pair(back, found):
            continue
        zero = found.zero + (_SHIFT if dtype_of(back.q) is torch.int8 else 0)
        if back.q not in rounded:
            rounded[back.q] = quantise(editor, back.q, found.x, found.scale, zero)
        editor.replace(node, dequantise(editor, node, rounded[back.q], found.scale, zero))
        num_found += 1
    return num_found


def quantise(editor: Editor, before: fx.Node, x: Any, scale: float, zero: int) -> fx.Node:
    """Insert the rounding of a value to unsigned bytes.

    Args:
        editor: inserts the call.
        before: the node that it is inserted before.
        x: node of a float tensor.
        scale: s, one for the whole tensor.
        zero: z, from 0 to 255.
    """
    call = decomposed.quantize_per_tensor.default
    return editor.call(before, call, x, scale, zero, *UINT8, torch.uint8)


def dequantise(editor: Editor, before: fx.Node, q: Any, scale: float, zero: int) -> fx.Node:
    """Insert the way back from unsigned bytes.

    Args:
        editor: inserts the call.
        before: the node that it is inserted before.
        q: node of a uint8 tensor.
        scale: s, one for the whole tensor.
        zero: z, from 0 to 255.
    """
    call = decomposed.dequantize_per_tensor.default
    return editor.call(before, call, q, scale, zero, *UINT8, torch.uint8)


def dequantised(editor: Editor, node: Any) -> Dequantised | None:
    """What a product brings back from eight-bit integers; None when it is another product."""
    if not is_call(node, aten.mul.Tensor) or dtype_of(node) is not torch.float32:
        return None
    q = _uncast(node.args[0])
    scale = constant_of(editor, node.args[1])
    q, zero = _with_constant(editor, q, aten.sub.Tensor)
    q = _uncast(q)
    if scale is None or zero is None or dtype_of(q) not in _LIMITS:
        return None
    return Dequantised(q, scale, zero)


def constant_of(editor: Editor, node: Any) -> torch.Tensor | None:
    """The value of a weight, of any shape, also reshaped or cast; None of anything else."""
    if is_call(node, aten.to.dtype, *RESHAPES):
        inner = constant_of(editor, node.args[0])
        return None if inner is None else node.target(inner, *node.args[1:])
    weight = editor.weight(node)
    return None if weight is None else weight.detach()


def _quantised(editor: Editor, node: Any) -> Quantised | None:
    clamped: Any = node.args[0] if is_call(node, aten.to.dtype) else None
    if not is_call(clamped, aten.clamp.default) or clamped.args[1:] != _LIMITS.get(dtype_of(node)):
        return None
    total, zero = _with_constant(editor, clamped.args[0], aten.add.Tensor)
    divided = _rounded(_uncast(total))
    if not is_call(divided, aten.div.Tensor) or dtype_of(divided) is not torch.float32:
        return None
    scale = constant_of(editor, divided.args[1])
    if scale is None or zero is None or scale.numel() != 1 or zero.numel() != 1:
        return None
    return Quantised(divided.args[0], float(scale), int(zero))


def _with_constant(editor: Editor, node: Any, call: Any) -> tuple[Any, torch.Tensor | None]:
    """Both sides of a sum or difference, the right one when it is constant; 0 without any."""
    if is_call(node, call):
        return node.args[0], constant_of(editor, node.args[1])
    return node, torch.zeros((), dtype=torch.int32)


def _rounded(node: Any) -> Any:
    """What was rounded, and kept from overflowing an int32 after that."""
    rounded: Any = node.args[0] if is_call(node, aten.clamp.default) else None
    return rounded.args[0] if is_call(rounded, aten.round.default) else None


def _is_pair(back: Dequantised, found: Quantised) -> bool:
    is_scalar = back.scale.numel() == back.zero.numel() == 1
    return is_scalar and (float(back.scale), int(back.zero)) == (found.scale, found.zero)


def _uncast(node: Any) -> Any:
    return node.args[0] if is_call(node, aten.to.dtype) else node
