"""Products of rounded values take the form that Inductor hands to oneDNN's int8 kernels.

Legend: N = rows of all leading axes, K = size of the input, M = size of the output.

Left as imported, both sides are brought back to floats and multiplied as floats. Inductor knows
`dequantize_per_tensor(x) @ dequantize_per_channel(w).T` with constant integers for w; it knows
rows alone, so leading axes are folded while they are bytes. Products of one value become one, as
`projections` does it with floats.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from compiler_worker.fx_rewrites.editor import (
    RESHAPES,
    Editor,
    aten,
    is_call,
)
from compiler_worker.fx_rewrites.products import leading_sizes, with_bias
from compiler_worker.fx_rewrites.projections import split
from compiler_worker.fx_rewrites.rounding import (
    INT8,
    decomposed,
    dequantise,
    dequantised,
    quantise,
    share_rounding,
)

# They choose and move values and compute none: rounding again what was rounded changes nothing.
_MOVES = (aten.max_pool2d.default, *RESHAPES)


class Weight(NamedTuple):
    """Signed bytes, the output's axis first, and a scale for each element of that axis: [M]."""

    values: torch.Tensor
    scale: torch.Tensor


class Product(NamedTuple):
    """`x @ weight + bias`, x from bytes, bias [M]; `node` is the product, `result` the sum."""

    node: fx.Node
    result: fx.Node
    x: fx.Node
    weight: Weight
    bias: torch.Tensor | None


def lower_int8_products(editor: Editor) -> int:
    """Rewrite convolutions and products of two rounded sides; the number of them."""
    share_rounding(editor)
    num_convolutions = sum(_convolve(editor, node) for node in editor.calls(aten.conv2d.default))
    groups: dict[tuple[Any, bool], list[Product]] = {}
    for node in editor.calls(aten.matmul.default, aten.linear.default):
        if found := _product(editor, node):
            # Not with and without a bias in one: the sum is of all columns.
            groups.setdefault((found.x, found.bias is None), []).append(found)
    for group in groups.values():
        _multiply(editor, group)
    return num_convolutions + sum(map(len, groups.values()))


def _convolve(editor: Editor, node: fx.Node) -> bool:
    weight = _weight(editor, node.args[1], axis=0)
    x = _bytes(editor, node) if weight else None
    if weight is None or x is None:
        return False
    node.update_arg(0, x)
    node.update_arg(1, _restored(editor, node, weight))
    return True


def _product(editor: Editor, node: fx.Node) -> Product | None:
    is_linear = is_call(node, aten.linear.default)
    weight = _weight(editor, node.args[1], axis=0 if is_linear else 1)
    # Rows of nothing could be any number of them.
    if weight is None or weight.values.dim() != 2 or not weight.values.numel():
        return None
    result, bias_node = with_bias(editor, node, len(weight.scale))
    bias = editor.weight(bias_node)
    if bias_node is not None and (bias is None or bias.dtype is not torch.float32):
        return None
    x = _bytes(editor, node)
    return None if x is None else Product(node, result, x, weight, bias)


def _weight(editor: Editor, node: Any, axis: int) -> Weight | None:
    """A constant of signed bytes around zero, with one scale or one for each output."""
    found = dequantised(editor, node)
    values = editor.weight(found.q) if found else None
    if found is None or values is None or values.dtype is not torch.int8 or found.zero.any():
        return None
    num_outputs = values.shape[axis] if values.dim() > axis else -1
    want = [num_outputs if each == axis else 1 for each in range(values.dim())]
    if found.scale.numel() != 1 and list(found.scale.shape) != want:
        return None
    scale_M = found.scale.reshape(-1).expand(num_outputs).contiguous()
    return Weight(values.detach().movedim(axis, 0).contiguous(), scale_M)


def _bytes(editor: Editor, node: fx.Node) -> fx.Node | None:
    """The left side as a call of `dequantize_per_tensor`, behind moves rounded once more."""
    x: Any = node.args[0]
    while is_call(x, *_MOVES):
        x = x.args[0]
    if not isinstance(x, fx.Node) or not is_call(x, decomposed.dequantize_per_tensor.default):
        return None
    if x is node.args[0]:
        return x
    scale_and_zero: Any = x.args[1:3]
    rounded = quantise(editor, node, node.args[0], *scale_and_zero)
    return dequantise(editor, node, rounded, *scale_and_zero)


def _restored(editor: Editor, before: fx.Node, weight: Weight) -> fx.Node:
    zeros_M = torch.zeros_like(weight.scale, dtype=torch.int64)
    parts = (editor.add_weight(part, before) for part in (*weight, zeros_M))
    call = decomposed.dequantize_per_channel.default
    return editor.call(before, call, *parts, 0, *INT8, torch.int8)


def _multiply(editor: Editor, group: list[Product]) -> None:
    """All products of one value, at the place of the first."""
    first = group[0].node
    x = group[0].x
    values_MK = torch.cat([product.weight.values for product in group])
    scale_M = torch.cat([product.weight.scale for product in group])
    restored = _restored(editor, first, Weight(values_MK, scale_M))
    weight = editor.call(first, aten.permute.default, restored, [1, 0])
    sizes = leading_sizes(editor, first, x.args[0])
    q_NK = editor.call(first, aten.reshape.default, x.args[0], [-1, values_MK.shape[1]])
    scale_and_zero: Any = x.args[1:3]
    rows = dequantise(editor, first, q_NK, *scale_and_zero)
    biases = [p.bias.detach() for p in group if p.bias is not None]
    if biases:
        bias = editor.add_weight(torch.cat(biases), first)
        whole = editor.call(first, aten.addmm.default, bias, rows, weight)
    else:
        whole = editor.call(first, aten.mm.default, rows, weight)
    whole = editor.call(first, aten.reshape.default, whole, [*sizes, values_MK.shape[0]])
    parts = split(editor, first, whole, [len(p.weight.scale) for p in group])
    for product, part in zip(group, parts, strict=True):
        editor.replace(product.result, part)
