"""Products of values rounded to E4M3 become calls of cuBLAS's fp8 kernels.

Legend: N = rows of all leading axes, K = size of the input, M = size of the output.

Left as imported, both sides are brought back to floats and multiplied as floats. Here a product
reads the bytes, and writes bfloat16, scaled by column and with its bias. Products of one value
become one, as with `projections`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from compiler_worker.fx_rewrites.editor import (
    CASTS,
    Editor,
    aten,
    dtype_of,
    is_call,
    shape_of,
)
from compiler_worker.fx_rewrites.products import with_bias
from compiler_worker.fx_rewrites.projections import split
from compiler_worker.fx_rewrites.rounding import constant_of

_E4M3 = torch.float8_e4m3fn
# cuBLAS takes columns and rows of so many bytes, and multiples.
_ALIGNED = 16


class _Rounded(NamedTuple):
    """`q * scale`: q a node of E4M3, the scale constant."""

    q: fx.Node
    scale: torch.Tensor


class _Product(NamedTuple):
    """`x @ weight + bias`, x from bytes; `node` is the product, `result` the sum.

    Attributes:
        weight: [M, K], E4M3.
        scale: [M], what weight and x are multiplied by.
        bias: [M].
    """

    node: fx.Node
    result: fx.Node
    weight: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None


def lower_fp8_products(editor: Editor) -> int:
    """Rewrite products of two sides in E4M3, of sizes that are known; the number of them."""
    groups: dict[tuple[fx.Node, bool], list[_Product]] = {}
    for node in editor.calls(aten.matmul.default, aten.linear.default):
        x = _rounded(editor, node.args[0])
        found = _product(editor, node, x) if x else None
        if x and found:
            # Not with and without a bias in one: the sum is of all columns.
            groups.setdefault((x.q, found.bias is None), []).append(found)
    for (q, _), group in groups.items():
        _multiply(editor, q, group)
    return sum(map(len, groups.values()))


def _rounded(editor: Editor, node: Any) -> _Rounded | None:
    product = _uncast(node)
    if not is_call(product, aten.mul.Tensor):
        return None
    q = _uncast(product.args[0])
    scale = constant_of(editor, product.args[1])
    return None if scale is None or dtype_of(q) is not _E4M3 else _Rounded(q, scale)


def _uncast(node: Any) -> Any:
    """What a float was cast from, up to bytes."""
    while is_call(node, *CASTS) and dtype_of(node) is not _E4M3:
        node = node.args[0]
    return node


def _product(editor: Editor, node: fx.Node, x: _Rounded) -> _Product | None:
    is_linear = is_call(node, aten.linear.default)
    right = _rounded(editor, node.args[1])
    weight = _weight(editor, right.q) if right else None
    if right is None or weight is None or weight.dim() != 2 or x.scale.numel() != 1:
        return None
    weight_MK = weight if is_linear else weight.t()
    num_outputs = weight_MK.shape[0]
    wanted = (num_outputs, 1) if is_linear else (1, num_outputs)
    if right.scale.numel() != 1 and tuple(right.scale.shape) != wanted:
        return None
    is_aligned = not any(size % _ALIGNED for size in weight_MK.shape) and weight_MK.numel() > 0
    is_static = all(isinstance(size, int) for size in shape_of(node))
    if not is_aligned or not is_static or dtype_of(node) is not torch.bfloat16:
        return None
    result, bias_node = with_bias(editor, node, num_outputs)
    scale_M = (x.scale.float() * right.scale.float()).reshape(-1).expand(num_outputs)
    bias_M = editor.weight(bias_node)
    if bias_node is not None and (bias_M is None or bias_M.dtype is not torch.bfloat16):
        return None
    return _Product(node, result, weight_MK.contiguous(), scale_M, bias_M)


def _weight(editor: Editor, q: fx.Node) -> torch.Tensor | None:
    """Constant bytes: they are stored as plain ones, which every file format knows."""
    stored = editor.weight(q.args[0]) if is_call(q, aten.view.dtype) else None
    return None if stored is None else stored.detach().view(_E4M3)


def _round_once(editor: Editor, q: fx.Node) -> None:
    """Have torch's own cast round to E4M3, as it does of float32: to the nearest, ties to even."""
    cast: Any = q
    while is_call(cast, aten.view.dtype):
        cast = cast.args[0]
    inside: Any = cast.args[0] if is_call(cast, *CASTS) else None
    chain = (aten.clamp.default, aten.mul.Tensor, aten.round.default, aten.mul.Tensor)
    x: Any = inside
    for call in chain:
        if not is_call(x, call):
            return
        x = x.args[0]
    if dtype_of(x) is torch.float32:
        editor.replace(inside, editor.call(inside, aten.clamp.default, x, *inside.args[1:]))


def _multiply(editor: Editor, q: fx.Node, group: list[_Product]) -> None:
    """All products of one value, at the place of the first."""
    _round_once(editor, q)
    first = group[0].node
    bytes_MK = torch.cat([product.weight.view(torch.uint8) for product in group])
    scale_1M = torch.cat([product.scale for product in group]).unsqueeze(0)
    q_NK = editor.call(first, aten.reshape.default, q, [-1, bytes_MK.shape[1]])
    stored = editor.add_weight(bytes_MK, first)
    weight = editor.call(first, aten.view.dtype, stored, _E4M3)
    weight_KM = editor.call(first, aten.permute.default, weight, [1, 0])
    # One a row is wanted, and the scale of x is in those of the columns.
    ones_N1 = torch.ones(shape_of(q_NK)[0], 1, device=scale_1M.device)
    scales = [editor.add_weight(each, first) for each in (ones_N1, scale_1M)]
    biases = [product.bias for product in group if product.bias is not None]
    bias = editor.join_weights(biases, first) if biases else None
    call = aten._scaled_mm.default  # noqa: SLF001 - an op of torch
    # The tensor cores' own sums: exact ones halve the rate, and bytes have lost more before.
    fast = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
    whole = editor.call(first, call, q_NK, weight_KM, *scales, bias, **fast)
    whole = editor.call(first, aten.reshape.default, whole, [*shape_of(q)[:-1], len(bytes_MK)])
    parts = split(editor, first, whole, [len(product.scale) for product in group])
    for product, part in zip(group, parts, strict=True):
        editor.replace(product.result, part)
