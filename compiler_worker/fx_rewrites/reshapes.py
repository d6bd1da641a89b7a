"""Chains of reshapes and of permutations become one each, or none."""

from __future__ import annotations

from torch import fx

from compiler_worker.fx_rewrites.editor import (
    RESHAPES,
    Editor,
    aten,
    is_call,
    is_same_shape,
    rank_of,
)


def fold_reshapes(editor: Editor) -> int:
    """Fold reshapes of reshapes and permutations of permutations; the number of calls saved."""
    num_saved = sum(_fold_reshape(editor, node) for node in editor.calls(*RESHAPES))
    return num_saved + sum(
        _fold_permute(editor, node) for node in editor.calls(aten.permute.default)
    )


def _fold_reshape(editor: Editor, node: fx.Node) -> bool:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    if is_same_shape(source, node):
        editor.replace(node, source)
        return True
    if not is_call(source, *RESHAPES):
        return False
    # The last one's sizes alone count, as no reshape moves an element.
    sizes = node.args[1]
    origin = source.args[0]
    editor.replace(node, editor.call(node, aten.reshape.default, origin, sizes))
    return True


def _fold_permute(editor: Editor, node: fx.Node) -> bool:
    source = node.args[0]
    order = _order(node)
    assert isinstance(source, fx.Node)
    is_saved = is_call(source, aten.permute.default)
    if is_saved:
        first = _order(source)
        order = [first[axis] for axis in order]
        source = source.args[0]
        assert isinstance(source, fx.Node)
    if order == sorted(order):
        editor.replace(node, source)
        return True
    if is_saved:
        editor.replace(node, editor.call(node, aten.permute.default, source, order))
    return is_saved


def _order(node: fx.Node) -> list[int]:
    axes = node.args[1]
    assert isinstance(axes, list | tuple)
    return [int(axis) % rank_of(node) for axis in axes]  # type: ignore[arg-type]
