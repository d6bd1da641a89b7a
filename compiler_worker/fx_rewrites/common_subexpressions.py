"""What is computed twice from the same arguments is computed once: a mask, per layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from compiler_worker.fx_rewrites.editor import Editor


def share_repeated(editor: Editor) -> int:
    """Give every repeated pure call its first occurrence's result; the number of calls saved."""
    seen: dict[Any, fx.Node] = {}
    num_saved = 0
    for node in list(editor.module.graph.nodes):
        key = _key(node)
        if key is None:
            continue
        if key in seen:
            editor.replace(node, seen[key])
            num_saved += 1
        else:
            seen[key] = node
    return num_saved


def _key(node: fx.Node) -> Any:
    """What decides a node's value; None where two equal calls may differ."""
    if node.op == "get_attr":
        return ("get_attr", node.target)
    if node.op != "call_function" or node.is_impure() or _is_random(node.target):
        return None
    # Copies are made to be two tensors: nothing that goes round a loop may be another of them.
    if node.target is torch.ops.aten.clone.default:
        return None
    # Nodes are compared as they are: their own twins were replaced before.
    return (node.target, _frozen(node.args), _frozen(node.kwargs))


def _is_random(target: Any) -> bool:
    tags = getattr(target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _frozen(value: Any) -> Any:
    """A hashable copy; numbers keep their type, because 1, 1.0 and True compute other things."""
    if isinstance(value, dict):
        return tuple((key, _frozen(each)) for key, each in sorted(value.items()))
    if isinstance(value, list | tuple):
        return tuple(_frozen(each) for each in value)
    if isinstance(value, slice):
        return ("slice", _frozen((value.start, value.stop, value.step)))
    if isinstance(value, int | float):
        return (type(value), repr(value))
    return value
