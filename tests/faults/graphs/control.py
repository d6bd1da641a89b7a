"""If, Loop and Scan, whose graphs are grown as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from tests.faults.graphs.drawing import axis_of, drawn
from tests.faults.graphs.grower import DroppedError, Grower, Value, initializer

Steps = Callable[[Grower, int], None]


def _inside(g: Grower, given: Sequence[Value], grow: Steps, name: str = "b") -> Grower:
    """A graph in a graph, grown by some nodes over what it is given and what is around it."""
    around = (*g.outer, *g.values)
    inner = Grower(g.rng, g.opset, g.sizes, prefix=f"{g.name()}{name}", outer=around)
    inner.values = [*g.values[-4:], *given]
    grow(inner, g.int(1, 3))
    return inner


def _graph(inner: Grower, given: Sequence[Value], results: Sequence[Value]) -> onnx.GraphProto:
    infos = [helper.make_tensor_value_info(v.name, v.type, [None] * v.rank) for v in given]
    ends, nodes = [], list(inner.nodes)
    for index, value in enumerate(results):
        # A graph gives each value once, and none that it was given.
        end = f"{inner.prefix}_end{index}"
        nodes.append(helper.make_node("Identity", [value.name], [end]))
        ends.append(helper.make_tensor_value_info(end, value.type, [None] * value.rank))
    constants = [initializer(value) for value in inner.constants]
    return helper.make_graph(nodes, f"{inner.prefix}_graph", infos, ends, constants)


def _read(g: Grower) -> list[Value]:
    return [*g.outer, *g.values, *g.constants]


def branches(g: Grower, grow: Steps) -> None:
    condition = g.constant(g.chance(0.5), np.bool_)
    if g.chance(0.7):
        condition = g.pick(lambda v: v.dtype == np.bool_ and all(a.size == 1 for a in v.arrays))
    first = _inside(g, (), grow, "t")
    second = _inside(g, (), grow, "e")
    left = g.one(first.values)
    fits = [v for v in second.values if v.dtype == left.dtype and v.rank == left.rank]
    right = g.one(fits)
    graphs = {"then_branch": _graph(first, (), [left]), "else_branch": _graph(second, (), [right])}
    g.add("If", [condition], outer=_read(g), inner=[left, right], **graphs)


def _carried(g: Grower) -> list[Value]:
    return [g.pick(lambda v: v.dtype != np.bool_) for _ in range(g.int(1, 2))]


def _fed(inner_prefix: str, values: Sequence[Value]) -> list[Value]:
    return [replace(v, name=f"{inner_prefix}_in{i}") for i, v in enumerate(values)]


def _after(g: Grower, inner: Grower, states: Sequence[Value]) -> list[Value]:
    """For each carried value one of its type and sizes, made in the body."""
    after = []
    for state in states:
        fits = [v for v in inner.values if v.dtype == state.dtype and v.shapes == state.shapes]
        after.append(g.one(fits))
    return after


def loop(g: Grower, grow: Steps) -> None:
    states = _carried(g)
    prefix = f"{g.name()}l"
    numbers = [np.array(0)] * len(g.sizes)
    count = Value(f"{prefix}_i", tuple(numbers))
    going = Value(f"{prefix}_c", (np.array(True),) * len(g.sizes))
    fed = _fed(prefix, states)
    inner = _inside(g, [*fed, count], grow)
    rows = [g.one(inner.values)] * g.int(0, 1)
    results = [*_after(g, inner, fed), *rows]
    body = _graph(inner, [count, going, *fed], [going, *results])
    kind = g.int(0, 2)
    trips = g.constant(g.int(0, 3), np.int64)
    if kind == 0:
        (trips,) = g.add("Squeeze", [g.ints([[n] for n in g.pick(lambda v: v.rank > 0).sizes(0)])])
    condition = g.constant(g.chance(0.9), np.bool_) if kind == 1 else None
    given = [trips, condition, *states]
    g.add("Loop", given, outputs=len(results), outer=_read(g), inner=results, body=body)


def scan(g: Grower, grow: Steps) -> None:
    states = _carried(g)
    row = g.pick(lambda v: v.rank > 0)
    axis = axis_of(g, row) if g.chance(0.3) else 0
    if not all(row.sizes(axis % row.rank)):
        raise DroppedError
    prefix = f"{g.name()}s"
    fed = _fed(prefix, states)
    first = tuple(np.take(array, 0, axis) for array in row.arrays)
    each = replace(row, name=f"{prefix}_row", arrays=first)
    inner = _inside(g, [*fed, each], grow)
    results = [*_after(g, inner, fed), g.one(inner.values)]
    body = _graph(inner, [*fed, each], results)
    ways = {"num_scan_inputs": 1, "scan_input_axes": [axis]}
    if g.chance(0.3):
        ways["scan_input_directions"] = [1]
    given, number = [*states, row], len(results)
    g.add("Scan", given, outputs=number, outer=_read(g), inner=results, body=body, **ways)


def conditions(g: Grower, grow: Steps) -> Value:
    """A truth: of sizes, or of data."""
    if g.chance(0.5):
        value = g.pick(lambda v: v.rank > 0)
        size = g.ints([[n] for n in value.sizes(0)])
        return g.add("Greater", [size, g.constant([g.int(0, 4)], np.int64)])[0]
    return g.input((), lambda shape: np.asarray(drawn(g.rng, shape, np.bool_)))


FAMILY = (branches, branches, loop, loop, scan, scan, conditions)
