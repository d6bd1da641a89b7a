"""Computes while importing what depends on small constants only.

Conditions, trip counts and shapes that exporters compute from constants with ops of floats count
as data on the device; the value they have in every call is found here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import map_arg

# Larger ones are weights, and count no loop.
MAX_FOLDED_ELEMENTS = 1024


def fold(
    node: torch.fx.Node, known: dict[torch.fx.Node, Any], leaf: Callable[[torch.fx.Node], Any]
) -> Any:
    """Return what a node gives, on the CPU and in the master's own types.

    Args:
        node: whose value is wanted.
        known: results by node; new ones are added.
        leaf: the value of a node that takes no other one, None where that is dynamic.

    Returns:
        A tensor or a number; None where it is not the same in every call, or is large.
    """
    # Without recursion: a chain of shape arithmetic may be longer than Python's stack.
    needed: set[torch.fx.Node] = set()
    open_nodes = [node]
    while open_nodes:
        each = open_nodes.pop()
        if each in needed or _is_small(known.get(each)):
            continue
        if each not in known and each.op in ("call_function", "call_method"):
            needed.add(each)
            # Where only the device of a tensor is used, its elements need not be known.
            open_nodes += [] if _is_device(each) else each.all_input_nodes
        elif each in known or not _is_small(known.setdefault(each, leaf(each))):
            known[node] = None
            return None
    # Nodes compare by their places in the graph.
    for each in sorted(needed):
        known[each] = _computed(each, known)
        if not _is_small(known[each]):
            return None
    return known[node]


def _is_device(node: torch.fx.Node) -> bool:
    return node.target is getattr and node.args[1] == "device"


def _is_small(value: Any) -> bool:
    return value is not None and getattr(value, "nelement", int)() <= MAX_FOLDED_ELEMENTS


def _computed(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> Any:
    if _is_device(node):
        return torch.device("cpu")
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    try:
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        # It fails in every call then, and says there what is wrong.
        return None
