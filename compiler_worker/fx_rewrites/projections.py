"""Several projections of one tensor become one product: queries, keys and values, for one.

Legend: N = rows of all leading axes, K = size of the input, M = size of one output.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import fx

from compiler_worker.fx_rewrites.editor import Editor, aten, shape_of
from compiler_worker.fx_rewrites.products import with_bias


class Projection(NamedTuple):
    """`x @ weight + bias`, or without a bias; weight [K, M], bias [M].

    Attributes:
        result: the node whose value that is.
        product: the matrix product in it.
    """

    product: fx.Node
    result: fx.Node
    weight: torch.Tensor
    bias: torch.Tensor | None


def merge_projections(editor: Editor) -> int:
    """Merge the projections of each tensor that are of one kind; the number of products saved."""
    groups: dict[tuple[Any, ...], list[Projection]] = {}
    for node in editor.calls(aten.matmul.default, aten.mm.default):
        if found := _projection(editor, node):
            bias_type = None if found.bias is None else found.bias.dtype
            # Types too: joining would promote the narrower one's result.
            key = (node.args[0], found.weight.dtype, bias_type)
            groups.setdefault(key, []).append(found)
    merged = [group for group in groups.values() if len(group) > 1]
    for group in merged:
        _merge(editor, group)
    return sum(len(group) - 1 for group in merged)


def _projection(editor: Editor, product: fx.Node) -> Projection | None:
    weight_KM = editor.weight(product.args[1])
    if weight_KM is None or weight_KM.dim() != 2:
        return None
    result, bias = with_bias(editor, product, weight_KM.shape[1])
    return Projection(product, result, weight_KM, editor.weight(bias))


def _merge(editor: Editor, group: list[Projection]) -> None:
    first = group[0].product
    sizes = [each.weight.shape[1] for each in group]
    weight = editor.join_weights([each.weight for each in group], first)
    whole = editor.call(first, first.target, first.args[0], weight)
    biases = [each.bias for each in group if each.bias is not None]
    if biases:
        bias = editor.join_weights(biases, first)
        whole = editor.call(first, aten.add.Tensor, whole, bias)
    # All before the first is replaced: it marks the place.
    parts = split(editor, first, whole, sizes)
    for each, part in zip(group, parts, strict=True):
        editor.replace(each.result, part)


def split(editor: Editor, before: fx.Node, whole: fx.Node, sizes: Sequence[int]) -> list[fx.Node]:
    """Parts of these sizes along the last axis; the tensor itself when that is one.

    Args:
        editor: inserts the slices.
        before: the node that they are inserted before.
        whole: the tensor's node.
        sizes: of the parts, in order; their sum is the last axis's size.
    """
    if len(sizes) == 1:
        return [whole]
    axis = len(shape_of(whole)) - 1
    return [
        editor.call(before, aten.slice.Tensor, whole, axis, end - size, end)
        for size, end in zip(sizes, accumulate(sizes), strict=True)
    ]
