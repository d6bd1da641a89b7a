"""Mask arithmetic that sizes alone decide is taken out of the graph.

Exporters write "every position at or after 0 may be attended" as a comparison of counters,
and look a mask up at the grid of all its positions. With static sizes both are known while
compiling; with symbols they stay.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from compiler_worker.fx_rewrites.editor import (
    Editor,
    aten,
    dtype_of,
    is_call,
    is_same_shape,
    rank_of,
    shape_of,
)

_CREATORS = (aten.arange.default, aten.arange.start, aten.arange.start_step)
# Masks of some thousand positions squared: what is larger takes longer to compute here than it
# saves.
_MAX_NUM_ELEMENTS = 2**22
_POSITIONS = (torch.int32, torch.int64)
_ANDS = (aten.__and__.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default)


def fold_truths(editor: Editor) -> int:
    """Remove conjunctions with what is always true and look-ups at every position; their number."""
    known = _known_values(editor)
    num_folded = 0
    for node in editor.calls(*_ANDS):
        num_folded += _fold_and(editor, node, known)
    for node in editor.calls(aten.index.Tensor):
        num_folded += _fold_grid(editor, node, known)
    return num_folded


def _known_values(editor: Editor) -> dict[fx.Node, torch.Tensor]:
    """Values of the nodes that depend on nothing but counters and constants that are no data."""
    known: dict[fx.Node, torch.Tensor] = {}
    for node in editor.module.graph.nodes:
        weight = editor.weight(node)
        if weight is not None and not weight.is_floating_point() and _is_small(node):
            known[node] = weight.cpu()
        if node.op != "call_function" or not _is_foldable(node, known):
            continue
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda each: known[each])
        if "device" in kwargs:
            # Where they are computed: a graph for a GPU names that.
            kwargs = {**kwargs, "device": "cpu"}
        value = node.target(*args, **kwargs)
        if isinstance(value, torch.Tensor):
            known[node] = value
    return known


def _is_foldable(node: fx.Node, known: dict[fx.Node, torch.Tensor]) -> bool:
    inputs = node.all_input_nodes
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return False
    is_start = is_call(node, *_CREATORS) or bool(inputs)
    return is_start and _is_small(node) and all(each in known for each in inputs)


def _is_small(node: fx.Node) -> bool:
    sizes = shape_of(node)
    is_static = all(isinstance(size, int) for size in sizes)
    return rank_of(node) >= 0 and is_static and math.prod(map(int, sizes)) <= _MAX_NUM_ELEMENTS


def _fold_and(editor: Editor, node: fx.Node, known: dict[fx.Node, torch.Tensor]) -> bool:
    for one, other in (node.args, node.args[::-1]):
        value = known.get(one) if isinstance(one, fx.Node) else None
        if value is None or value.dtype != torch.bool or not bool(value.all()):
            continue
        if isinstance(other, fx.Node) and dtype_of(other) == torch.bool:
            editor.replace(node, _narrowest(editor, node, other))
            return True
    return False


def _narrowest(editor: Editor, node: fx.Node, other: fx.Node) -> fx.Node:
    """The other side; as wide as the conjunction was where that could be seen."""
    if is_same_shape(node, other):
        return other
    # Attention broadcasts its mask itself.
    is_mask = all(is_call(user, aten.scaled_dot_product_attention.default) for user in node.users)
    if is_mask and rank_of(other) == rank_of(node):
        return other
    own = (None,) * (rank_of(node) - rank_of(other)) + shape_of(other)
    # A symbol is a size of the other side: what is known has none.
    sizes = [
        size if isinstance(size, int) and str(size) != str(mine) else -1
        for size, mine in zip(shape_of(node), own, strict=True)
    ]
    return editor.call(node, aten.expand.default, other, sizes)


def _fold_grid(editor: Editor, node: fx.Node, known: dict[fx.Node, torch.Tensor]) -> bool:
    """`table[i, j, ...]` with i, j counting all of its axes is the table, reshaped."""
    table = node.args[0]
    indices = node.args[1]
    assert isinstance(indices, list | tuple)
    grids = [known.get(each) if isinstance(each, fx.Node) else None for each in indices]
    sizes = shape_of(table)
    if len(grids) != len(sizes):
        return False
    if not all(_is_inside(grid, size) for grid, size in zip(grids, sizes, strict=True)):
        return False
    place = torch.zeros((), dtype=torch.int64)
    for grid, size in zip(grids, sizes, strict=True):
        assert grid is not None
        place = place * int(size) + grid
    if not torch.equal(place.flatten(), torch.arange(math.prod(map(int, sizes)))):
        return False
    editor.replace(node, editor.call(node, aten.reshape.default, table, list(place.shape)))
    return True


def _is_inside(grid: torch.Tensor | None, size: Any) -> bool:
    """Whether it counts positions from the front; others name another place by the same sum."""
    # Truths, and bytes that stand for them, select what they are set for.
    if grid is None or grid.dtype not in _POSITIONS or not isinstance(size, int):
        return False
    return bool(((grid >= 0) & (grid < size)).all())
