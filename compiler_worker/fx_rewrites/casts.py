"""Casts that change nothing, and islands of a wider type that lose nothing, are taken out."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from compiler_worker.fx_rewrites.editor import CASTS, Editor, aten, dtype_of, is_call, only_user

# Ops that only move elements: they may run in either type.
_MOVES = (
    aten.clone.default,
    aten.expand.default,
    aten.permute.default,
    aten.reshape.default,
    aten.slice.Tensor,
    aten.squeeze.dim,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.view.default,
)
# The narrower first: every value of a type exists in the types that follow it here.
WIDER: dict[torch.dtype | None, set[torch.dtype]] = {
    torch.float16: {torch.float32, torch.float64},
    torch.bfloat16: {torch.float32, torch.float64},
    torch.float32: {torch.float64},
    torch.bool: {torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64},
    torch.uint8: {torch.int32, torch.int64, torch.float32, torch.float64},
    torch.int32: {torch.int64, torch.float64},
}


def fold_casts(editor: Editor) -> int:
    """Remove casts without effect; the number of casts removed."""
    return sum(_fold(editor, node) for node in editor.calls(*CASTS))


def _fold(editor: Editor, cast: fx.Node) -> int:
    # A cast may move to another device or layout too.
    if cast.args[1:] == () and set(cast.kwargs) != {"dtype"}:
        return 0
    source = cast.args[0]
    wanted = dtype_of(cast)
    if dtype_of(source) == wanted:
        editor.replace(cast, source)  # type: ignore[arg-type]
        return 1
    # Widened and narrowed again, with nothing between that computes.
    moves, inner = _moved(source)
    if not is_call(inner, *CASTS) or not isinstance(inner, fx.Node):
        return 0
    origin = inner.args[0]
    if dtype_of(inner) not in WIDER.get(dtype_of(origin), ()):
        return 0
    node: Any = origin
    for move in moves:
        node = editor.call(cast, move.target, node, *move.args[1:], **move.kwargs)
    if dtype_of(node) != wanted:
        node = editor.call(cast, aten.to.dtype, node, wanted)
    editor.replace(cast, node)
    return 1


def is_widening(cast: fx.Node) -> bool:
    """Whether a cast takes floating-point numbers to a type that holds each of them."""
    return holds(dtype_of(cast), dtype_of(cast.args[0]))


def holds(wide: torch.dtype | None, narrow: torch.dtype | None) -> bool:
    """Whether a floating-point type holds every number of another one."""
    if wide is None or narrow is None or not narrow.is_floating_point:
        return False
    return wide == narrow or wide in WIDER.get(narrow, ())


def _moved(node: Any) -> tuple[list[fx.Node], Any]:
    """The moves that a value went through, first one first, and where it came from."""
    moves: list[fx.Node] = []
    while is_call(node, *_MOVES) and only_user(node) is not None:
        moves.append(node)
        node = node.args[0]
    return moves[::-1], node
