"""A graph whose roundings to eight bits are shifted: what a master makes of float32's own errors.

A value near the middle of two steps goes to one in one library and to the other in the next, and
all that follows differs by a step. Both are right: only sums in another order, or a bias that is
rounded to a step of the products, lie between them. Who shifts what is rounded, once up and once
down, measures how much of an output depends on that.
"""

import copy
from collections.abc import Iterator
from itertools import chain

import torch
from torch import fx


def quantises_values(module: torch.nn.Module) -> bool:
    """Whether anything but constants is rounded to a quantised type."""
    return any(True for _ in _roundings(module))


def with_shifted_roundings(module: torch.nn.Module, shift: float) -> torch.nn.Module:
    """A copy, with the same weights, in which what is rounded lies so many steps higher."""
    shared = {id(each): each for each in chain(module.parameters(), module.buffers())}
    found = copy.deepcopy(module, shared)
    for node in list(_roundings(found)):
        with node.graph.inserting_before(node):
            # Floats of 16 bits have no hundredths of a step.
            wide = node.graph.call_method("to", (node.args[0], torch.float64))
            node.args = (node.graph.call_function(torch.add, (wide, shift)),)
    for graph in _graphs(found):
        graph.recompile()
    return found


def _roundings(module: torch.nn.Module) -> Iterator[fx.Node]:
    for graph in _graphs(module):
        varies: set[fx.Node] = set()
        for node in graph.graph.nodes:
            if node.op == "placeholder" or not varies.isdisjoint(node.all_input_nodes):
                varies.add(node)
                if node.target is torch.round and _is_quantising(node):
                    yield node


def _is_quantising(node: fx.Node) -> bool:
    """Whether a rounding is one of QuantizeLinear and its kin, by what the importer makes of them.

    Of integers it casts and clamps after it; of small floats it multiplies by a power of two
    before it, made of bits.
    """
    user = next(iter(node.users))
    given = node.args[0]
    is_integer = user.target == "to" and any(n.target is torch.clamp for n in user.users)
    is_small_float = (
        isinstance(given, fx.Node)
        and given.target is torch.mul
        and getattr(given.args[1], "target", None) == "view"
    )
    return is_integer or is_small_float


def _graphs(module: torch.nn.Module) -> Iterator[fx.GraphModule]:
    return (each for each in module.modules() if isinstance(each, fx.GraphModule))
