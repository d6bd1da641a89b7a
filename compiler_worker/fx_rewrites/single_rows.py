"""A product with a single row is a sum for each output: no work for the matrix units.

Their smallest tile has rows that would stay empty, and few of them are in flight; a
reduction reads the weights once, at the memory's speed.

Legend: K = size of the input, M = size of the output.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from compiler_worker.fx_rewrites.editor import NARROW, Editor, aten, dtype_of, shape_of


class RowProduct(NamedTuple):
    """`x @ weight + bias`, the weight's axis of inputs named."""

    x: Any
    weight: Any
    bias: Any
    input_axis: int


def split_single_rows(editor: Editor) -> int:
    """Rewrite the products of one row with a weight of the model; the number of them."""
    calls = editor.calls(aten.linear.default, aten.addmm.default, aten.matmul.default)
    return sum(_rewrite(editor, node) for node in calls)


def _rewrite(editor: Editor, node: fx.Node) -> bool:
    found = _product(node)
    if found is None:
        return False
    weight = editor.weight(found.weight)
    sizes = shape_of(found.x)
    if weight is None or weight.dim() != 2 or dtype_of(node) not in NARROW:
        return False
    if any(size != 1 for size in sizes[:-1]) or sizes[-1] != weight.shape[found.input_axis]:
        return False
    # As a column beside [K, M], as a row beside [M, K].
    shape = [-1, 1] if found.input_axis == 0 else [-1]
    row = editor.call(node, aten.reshape.default, found.x, shape)
    # Wide, so that neither the products nor their sum are rounded before the end.
    wide = [editor.call(node, aten.to.dtype, each, torch.float32) for each in (found.weight, row)]
    total = editor.call(node, aten.mul.Tensor, *wide)
    total = editor.call(node, aten.sum.dim_IntList, total, [found.input_axis])
    if found.bias is not None:
        total = editor.call(node, aten.add.Tensor, total, found.bias)
    total = editor.call(node, aten.to.dtype, total, dtype_of(node))
    editor.replace(node, editor.call(node, aten.reshape.default, total, list(shape_of(node))))
    return True


def _product(node: fx.Node) -> RowProduct | None:
    if node.kwargs:
        return None
    if node.target is aten.linear.default:
        return RowProduct(node.args[0], node.args[1], (*node.args, None)[2], 1)
    if node.target is aten.addmm.default:
        return RowProduct(node.args[1], node.args[2], node.args[0], 0)
    return RowProduct(node.args[0], node.args[1], None, 0)
