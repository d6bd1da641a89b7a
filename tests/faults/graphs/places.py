"""Ops that read or write at indices: gather, scatter, one-hot, orders."""

from __future__ import annotations

import numpy as np

from services.contracts.kserve.tensors import Array
from tests.faults.graphs.drawing import axis_of, constant, drawn, holds, smallest
from tests.faults.graphs.grower import DroppedError, Grower, Value


def _indices(g: Grower, shape: tuple[int, ...], size: int) -> Array:
    if not size and np.prod(shape):
        raise DroppedError
    return g.rng.integers(-size, max(size, 1), shape).astype(g.one((np.int64, np.int64, np.int32)))


def gather(g: Grower) -> None:
    value = g.pick(lambda v: v.rank > 0)
    axis = axis_of(g, value)
    size = smallest(value, axis % value.rank)
    found = [v for v in g.values if v.dtype in (np.int64, np.int32) and v.is_exact]
    found = [v for v in found if holds(v, -size, size - 1)]
    if found and g.chance(0.5):
        places = g.one(found)
    else:
        places = g.constant(_indices(g, g.one(((), (1,), (3,), (2, 2), (0,))), size))
    g.add("Gather", [value, places], axis=axis)


def gather_elements(g: Grower) -> None:
    value = g.pick(lambda v: v.rank > 0)
    axis = axis_of(g, value)
    shape = [g.int(min(1, smallest(value, i)), smallest(value, i)) for i in range(value.rank)]
    shape[axis] = g.int(1, 4)
    places = g.constant(_indices(g, tuple(shape), smallest(value, axis % value.rank)))
    g.add("GatherElements", [value, places], axis=axis)


def gather_nd(g: Grower) -> None:
    value = g.pick(lambda v: v.rank > 0)
    batch = int(value.rank > 1 and bool(value.static(0)) and g.chance(0.3))
    depth = g.int(1, value.rank - batch)
    front = [value.static(0)] * batch + [g.int(1, 3)] * g.int(0, 1)
    columns = [_indices(g, tuple(front), smallest(value, batch + i)) for i in range(depth)]
    places = np.stack([c.astype(np.int64) for c in columns], axis=-1)
    g.add("GatherND", [value, g.constant(places)], batch_dims=batch)


def scatter(g: Grower) -> None:
    """Of elements or of slices; each place at most once where nothing is summed."""
    value = g.pick(lambda v: v.rank > 0 and v.dtype != np.bool_)
    reduction = g.one(
        ["none", "none"] + ["add", "mul"] * (g.opset >= 16) + ["max", "min"] * (g.opset >= 18)
    )
    named = {} if reduction == "none" else {"reduction": reduction}
    if g.chance(0.5):
        axis = g.int(0, value.rank - 1)
        shape = [g.int(min(1, smallest(value, i)), smallest(value, i)) for i in range(value.rank)]
        order = g.rng.permutation(smallest(value, axis))[: shape[axis]]
        along = order.reshape([-1 if i == axis else 1 for i in range(value.rank)])
        places = g.constant(np.broadcast_to(along, shape).astype(np.int64))
        g.add(
            "ScatterElements", [value, places, constant(g, shape, value.dtype)], axis=axis, **named
        )
        return
    rest = [value.static(i) for i in range(1, value.rank)]
    if None in rest or not smallest(value, 0):
        raise DroppedError
    order = g.rng.permutation(smallest(value, 0))[: g.int(1, 2)]
    order = order - smallest(value, 0) * g.int(0, 1) if value.static(0) else order
    updates = constant(g, [len(order), *[n for n in rest if n is not None]], value.dtype)
    g.add("ScatterND", [value, g.constant(order[:, None], np.int64), updates], **named)


def one_hot(g: Grower) -> None:
    value = g.pick(lambda v: v.dtype in (np.int64, np.int32) and v.is_exact)
    ends = constant(g, (2,), g.one((np.float32, np.int64)))
    depth = g.constant(g.one((g.int(1, 6), [g.int(1, 6)])), np.int64)
    g.add("OneHot", [value, depth, ends], axis=g.int(-1, value.rank))


def summed(g: Grower) -> None:
    value = g.taken("CumSum", lambda v: v.rank > 0)
    ways = {"exclusive": g.int(0, 1), "reverse": g.int(0, 1)}
    g.add("CumSum", [value, g.constant(axis_of(g, value), np.int64)], **ways)


def top(g: Grower) -> None:
    value = g.taken("TopK", lambda v: v.rank > 0 and v.is_exact)
    axis = axis_of(g, value)
    sizes = value.sizes(axis % value.rank)
    most = (
        g.ints([[n] for n in sizes])
        if g.chance(0.3)
        else g.constant([g.int(0, min(sizes))], np.int64)
    )
    g.add("TopK", [value, most], outputs=2, axis=axis, largest=g.int(0, 1))


def extreme(g: Grower) -> None:
    name = g.one(("ArgMax", "ArgMin"))
    value = g.taken(name, lambda v: v.rank > 0 and v.is_exact)
    ways = {"keepdims": g.int(0, 1), "select_last_index": g.int(0, 1)}
    g.add(name, [value], axis=axis_of(g, value), **ways)


def chosen(g: Grower) -> None:
    """What is kept by a condition, and where something is: sizes that data may decide."""
    if g.chance(0.3):
        g.add("NonZero", [g.pick(lambda v: v.is_exact and v.rank > 0)])
        return
    value = g.pick(lambda v: v.rank > 0)
    axis = g.one((None, axis_of(g, value)))
    size = smallest(value, axis % value.rank) if axis is not None else 3
    g.add("Compress", [value, g.constant(drawn(g.rng, (size,), np.bool_))], axis=axis)


def unique(g: Grower) -> None:
    value: Value = g.taken("Unique", lambda v: v.is_exact and v.rank == 1)
    g.add("Unique", [value], outputs=g.int(1, 4))


FAMILY = (
    gather,
    gather,
    gather_elements,
    gather_nd,
    scatter,
    scatter,
    one_hot,
    summed,
    top,
    extreme,
    chosen,
)
RARE = (unique,)
