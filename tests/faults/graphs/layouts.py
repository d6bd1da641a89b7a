"""Ops that move elements, and what computes where to."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from onnx import numpy_helper

from tests.faults.graphs.drawing import axis_of, constant, drawn, partner, smallest
from tests.faults.graphs.grower import DroppedError, Grower, Value

_ENDS = (-(2**63) + 1, 2**63 - 1, 2**31 - 1)


def transpose(g: Grower) -> None:
    value = g.pick(lambda v: v.rank > 1)
    g.add("Transpose", [value], perm=g.rng.permutation(value.rank).tolist())


def reshape(g: Grower) -> None:
    """Axes merged, split or of one element; sizes as they are, as 0 or as -1."""
    value = g.pick(lambda v: v.rank > 0)
    wanted = _regrouped(g, value)
    shape: list[tuple[int, ...]] = []
    for position, sizes in enumerate(wanted):
        is_copied = position < value.rank and value.sizes(position) == sizes
        has_rest = any(set(column) == {-1} for column in shape)
        is_long = len(set(sizes)) > 1
        if is_copied and g.chance(0.5):
            sizes = (0,) * len(sizes)
        elif not has_rest and g.chance(0.8 if is_long else 0.2):
            sizes = (-1,) * len(sizes)
        shape.append(sizes)
    is_zero_meant = not any(set(column) == {0} for column in shape) and g.chance(0.2)
    target = g.ints(list(zip(*shape, strict=True)) if shape else [()] * len(g.sizes))
    g.add("Reshape", [value, target], allowzero=int(is_zero_meant) or None)


def _regrouped(g: Grower, value: Value) -> list[tuple[int, ...]]:
    """Sizes of new axes, each by setting."""
    result: list[tuple[int, ...]] = []
    for axis in range(value.rank):
        size, sizes = value.static(axis), value.sizes(axis)
        factors = [f for f in range(2, size or 0) if size is not None and size % f == 0]
        if result and g.chance(0.3):
            result[-1] = tuple(a * b for a, b in zip(result[-1], sizes, strict=True))
        elif factors and size is not None and g.chance(0.5):
            factor = g.one(factors)
            result += [(factor,) * len(sizes), (size // factor,) * len(sizes)]
        else:
            result.append(sizes)
        if g.chance(0.1):
            result.append((1,) * len(sizes))
    return result


def ranks(g: Grower) -> None:
    value = g.pick()
    name = g.one(("Unsqueeze", "Squeeze", "Flatten"))
    if name == "Flatten":
        g.add(name, [value], axis=g.int(-value.rank, value.rank))
        return
    if name == "Unsqueeze":
        axes = [g.int(-value.rank - 1, value.rank)]
    else:
        axes = [axis for axis in range(value.rank) if value.static(axis) == 1]
        axes = [axis - value.rank * g.int(0, 1) for axis in axes]
    g.add(name, [value, g.constant(axes, np.int64)])


def concat(g: Grower) -> None:
    first = g.pick(lambda v: v.rank > 0)
    axis = axis_of(g, first)
    place = axis % first.rank
    fits = [
        v
        for v in g.values
        if v.rank == first.rank
        and v.dtype == first.dtype
        and all(v.sizes(i) == first.sizes(i) for i in range(v.rank) if i != place)
    ]
    g.add("Concat", [g.one(fits) for _ in range(g.int(1, 2))] + [first], axis=axis)


def split(g: Grower) -> None:
    value = g.pick(lambda v: v.rank > 0)
    axis = axis_of(g, value)
    size = value.static(axis % value.rank)
    if size and g.chance(0.6):
        cuts = sorted(g.int(0, size) for _ in range(g.int(0, 2)))
        parts = [b - a for a, b in pairwise([0, *cuts, size])]
        g.add("Split", [value, g.constant(parts, np.int64)], outputs=len(parts), axis=axis)
    else:
        number = g.int(1, 3)
        if any((number - 1) * -(-n // number) > n for n in value.sizes(axis % value.rank)):
            raise DroppedError
        counted = {"num_outputs": number} if g.opset >= 18 else {}
        g.add("Split", [value], outputs=number, axis=axis, **counted)


def slices(g: Grower) -> None:
    value = g.pick(lambda v: v.rank > 0)
    places = sorted(g.rng.permutation(value.rank)[: g.int(1, min(2, value.rank))].tolist())
    bounds = [[_bound(g, value.sizes(axis)) for axis in places] for _ in range(2)]
    starts, ends = (g.ints(list(zip(*columns, strict=True))) for columns in bounds)
    steps = [g.one((1, 1, 1, 2, 3, -1, -2)) for _ in places]
    axes = [axis - value.rank * g.int(0, 1) for axis in places]
    given = [value, starts, ends, g.constant(axes, np.int64), g.constant(steps, np.int64)]
    g.add("Slice", given[:4] if set(steps) == {1} and g.chance(0.5) else given)


def _bound(g: Grower, sizes: tuple[int, ...]) -> tuple[int, ...]:
    kind, rest = g.int(0, 4), g.int(-3, 3)
    if kind == 0:
        return tuple(size + rest for size in sizes)
    if kind == 1:
        return tuple(rest - size for size in sizes)
    return (g.one(_ENDS) if g.chance(0.1) else rest,) * len(sizes)


def expand(g: Grower) -> None:
    value = g.pick()
    columns = [(1,) * len(g.sizes) if g.chance(0.5) else value.sizes(i) for i in range(value.rank)]
    other = g.pick()
    if other.rank and g.chance(0.7):
        columns.insert(0, other.sizes(g.int(0, other.rank - 1)))
    columns = [
        (g.int(2, 3),) * len(c)
        if i >= len(columns) - value.rank
        and value.static(i - len(columns) + value.rank) == 1
        and g.chance(0.5)
        else c
        for i, c in enumerate(columns)
    ]
    rows = list(zip(*columns, strict=True)) if columns else [()] * len(g.sizes)
    g.add("Expand", [value, g.ints(rows)])


def tile(g: Grower) -> None:
    value = g.pick(lambda v: v.rank > 0)
    g.add(
        "Tile",
        [
            value,
            g.constant([g.int(0, 8) % 3 + (g.int(0, 3) > 0) for _ in range(value.rank)], np.int64),
        ],
    )


def pad(g: Grower) -> None:
    value = g.taken("Pad")
    modes = ["constant", "constant", "reflect", "edge"] + ["wrap"] * (g.opset >= 19)
    mode, low = g.one(modes), -1 if g.chance(0.3) else 0
    places = list(range(value.rank))
    axes = None
    if g.opset >= 18 and value.rank and g.chance(0.4):
        places = places[g.int(0, value.rank - 1) :]
        axes = g.constant([i - value.rank * g.int(0, 1) for i in places], np.int64)
    most = [3 if mode == "constant" else min(2, smallest(value, i) - 1) for i in places]
    pads = [g.int(low, max(most[i % len(places)], low)) for i in range(2 * len(places))]
    filler = constant(g, (), value.dtype) if mode == "constant" and g.chance(0.5) else None
    given = [value, g.constant(pads, np.int64), filler, axes]
    while given[-1] is None:
        given.pop()
    g.add("Pad", given, mode=mode)


def shaped(g: Grower) -> None:
    """Values that are made of sizes."""
    value = g.pick()
    match g.int(0, 5):
        case 0:
            ends = {"start": g.int(-3, 2), "end": g.int(-2, 4)} if g.opset >= 15 else {}
            g.add("Shape", [value], **(ends if g.chance(0.6) else {}))
        case 1:
            g.add("Size", [value])
        case 2:
            (shape,) = g.add("Shape", [value])
            filler = g.one((np.float32, np.int64, np.bool_, np.float16, np.int8))
            tensor = numpy_helper.from_array(drawn(g.rng, (1,), filler), "value")
            g.add("ConstantOfShape", [shape], value=tensor if g.chance(0.8) else None)
        case 3:
            like = g.taken("EyeLike", lambda v: v.rank == 2)
            g.add("EyeLike", [like], k=g.int(-2, 2), dtype=g.one((None, 1, 7, 10)))
        case 4:
            _counted(g)
        case _:
            like = g.taken("Trilu", lambda v: v.rank > 1)
            g.add("Trilu", [like, g.constant(g.int(-3, 3), np.int64)], upper=g.int(0, 1))


def _counted(g: Grower) -> None:
    """Range to a size, or over numbers."""
    if g.chance(0.4):
        dtype = g.one((np.float32, np.int64, np.int32))
        ends = [g.constant(n, dtype) for n in (g.int(-3, 3), g.int(-3, 6), g.one((1, 2, -1, -2)))]
        g.add("Range", ends)
        return
    value = g.pick(lambda v: v.rank > 0)
    size = g.ints([[n] for n in value.sizes(g.int(0, value.rank - 1))])
    (limit,) = g.add("Squeeze", [size])
    g.add("Range", [g.constant(g.int(-2, 1), np.int64), limit, g.constant(g.int(1, 2), np.int64)])


def blocks(g: Grower) -> None:
    value = g.pick(lambda v: v.rank == 4)
    if g.chance(0.5):
        g.add("SpaceToDepth", [value], blocksize=g.int(1, 2))
    else:
        g.add("DepthToSpace", [value], blocksize=g.int(1, 2), mode=g.one(("DCR", "CRD")))


def reversed_sequence(g: Grower) -> None:
    value = g.pick(lambda v: v.rank > 1)
    batch = g.int(0, 1)
    count = value.static(batch)
    if not count or not smallest(value, 1 - batch):
        raise DroppedError
    lengths = [g.int(1, smallest(value, 1 - batch)) for _ in range(count)]
    given = [value, g.constant(lengths, np.int64)]
    g.add("ReverseSequence", given, batch_axis=batch, time_axis=1 - batch)


def selected(g: Grower) -> None:
    """Where of a comparison: masks as exporters write them."""
    value = g.pick(lambda v: v.is_exact and v.is_float)
    (mask,) = g.add("Greater", [value, partner(g, value)])
    g.add("Where", [mask, value, constant(g, (), value.dtype)])


FAMILY = (
    *(transpose, reshape, reshape, ranks, concat, split, slices, slices, slices, expand),
    *(tile, pad, shaped, shaped, shaped, blocks, reversed_sequence, selected),
)
