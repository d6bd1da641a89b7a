"""Reductions, products and normalisations."""

from __future__ import annotations

import numpy as np

from tests.faults.graphs.drawing import (
    axis_of,
    broadcasts,
    constant,
    is_16_bits,
    ones,
    partner,
    weight,
    words,
)
from tests.faults.graphs.grower import DroppedError, Grower, Value

_EXACT = words("ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceSumSquare")
_ROUNDED = words("ReduceMean ReduceL2 ReduceLogSum ReduceLogSumExp")
_EQUATIONS = words(
    "ij,jk->ik ij,kj->ik bij,bjk->bik bid,bjd->bij ij->ji ij->i ij-> ijk->kj i,j->ij ij,ij "
    "...ij,...jk->...ik ij,ij->ij ijk,k->ij ii->i ...j->... ijk,ilk->ijl"
)


def reduce(g: Grower) -> None:
    name = g.one(_EXACT + _ROUNDED)
    value = g.taken(name)
    if name == "ReduceLogSum":  # where a sum cancels, rounding decides of its logarithm
        (value,) = g.add("Abs", [value])
    places = g.rng.permutation(value.rank)[: g.int(0, value.rank)].tolist()
    axes = [axis - value.rank * g.int(0, 1) for axis in sorted(places)]
    ways: dict[str, int | list[int]] = {"keepdims": g.int(0, 1)}
    if g.opset >= 18 or name == "ReduceSum":
        given = [value] if g.chance(0.2) else [value, g.constant(axes, np.int64)]
        ways |= {"noop_with_empty_axes": 1} if g.chance(0.3) else {}
    else:
        given = [value]
        ways |= {"axes": axes} if axes else {}
    g.add(name, given, exact=name in _EXACT, **ways)


def product(g: Grower) -> None:
    left = g.taken("MatMul", lambda v: v.rank > 0)
    fits = [v for v in g.values if v.dtype == left.dtype and v.rank > 1 and _multiplies(left, v)]
    if fits and g.chance(0.4):
        right = g.one(fits)
    else:
        right = weight(g, [left.static(left.rank - 1), *[g.int(1, 4)] * g.int(0, 1)], left)
    g.add("MatMul", [left, right], exact=not is_16_bits(left))


def _multiplies(left: Value, right: Value) -> bool:
    return left.sizes(left.rank - 1) == right.sizes(right.rank - 2)


def squares(g: Grower) -> None:
    """A value with its own transpose."""
    value = g.taken("MatMul", lambda v: v.rank > 1)
    perm = [*range(value.rank - 2), value.rank - 1, value.rank - 2]
    (turned,) = g.add("Transpose", [value], perm=perm)
    g.add(
        "MatMul", [value, turned] if g.chance(0.5) else [turned, value], exact=not is_16_bits(value)
    )


def gemm(g: Grower) -> None:
    left = g.taken("Gemm", lambda v: v.rank == 2)
    turned, flipped, width = g.int(0, 1), g.int(0, 1), g.int(1, 4)
    inner = left.static(1 - turned)
    right = weight(g, (width, inner) if flipped else (inner, width), left)
    bias = constant(g, g.one(((), (1,), (width,), (1, width))), left.dtype)
    scales = {"alpha": g.one((1.0, 0.5)), "beta": g.one((1.0, 2.0, 0.0))} if g.chance(0.5) else {}
    given = [left, right, bias] if g.chance(0.7) else [left, right]
    g.add("Gemm", given, transA=turned, transB=flipped, exact=not is_16_bits(left), **scales)


def einsum(g: Grower) -> None:
    equation = g.one(_EQUATIONS)
    terms = equation.split("->")[0].split(",")
    bound: dict[str, tuple[int, ...]] = {}
    inputs: list[Value] = []
    for term in terms:
        letters = term.replace("...", "")
        inputs.append(_operand(g, letters, "..." in term, bound, inputs))
    g.add("Einsum", inputs, equation=equation, exact=not is_16_bits(inputs[0]))


def _operand(
    g: Grower, letters: str, is_open: bool, bound: dict[str, tuple[int, ...]], before: list[Value]
) -> Value:
    """A value whose sizes are those that its letters have already."""

    def fits(value: Value) -> bool:
        rank = value.rank if is_open else len(letters)
        if value.rank != rank or rank < len(letters) or (before and value.dtype != before[0].dtype):
            return False
        sizes = [value.sizes(value.rank - len(letters) + i) for i in range(len(letters))]
        known = dict(bound)
        return all(known.setdefault(n, s) == s for n, s in zip(letters, sizes, strict=True))

    value = g.taken("Einsum", fits)
    for i, letter in enumerate(letters):
        bound[letter] = value.sizes(value.rank - len(letters) + i)
    return value


def normalised(g: Grower) -> None:
    match g.int(0, 6):
        case 0:
            value = g.taken("LayerNormalization", lambda v: v.rank > 0)
            axis = axis_of(g, value)
            sizes = [value.static(i) for i in range(axis % value.rank, value.rank)]
            given = [value, weight(g, sizes, value)] + [weight(g, sizes, value)] * g.int(0, 1)
            g.add("LayerNormalization", given, exact=False, axis=axis)
        case 1:
            value = g.taken("RMSNormalization", lambda v: v.rank > 0)
            axis = axis_of(g, value)
            sizes = [value.static(i) for i in range(axis % value.rank, value.rank)]
            g.add("RMSNormalization", [value, weight(g, sizes, value)], exact=False, axis=axis)
        case 2:
            # Before opset 14 the evaluator takes every one for one that is trained.
            value = g.taken("BatchNormalization", lambda v: v.rank > 1 and g.opset >= 14)
            size = [value.static(1)]
            given = [value, *(weight(g, size, value) for _ in range(3)), ones(g, size, value)]
            g.add("BatchNormalization", given, exact=False)
        case 3:
            # ONNX Runtime 1.31 ends the process where there is none.
            value = g.taken("InstanceNormalization", lambda v: v.rank > 2 and 0 not in v.sizes(0))
            given = [value, *(weight(g, [value.static(1)], value) for _ in range(2))]
            g.add("InstanceNormalization", given, exact=False)
        case 4:
            value = g.taken("GroupNormalization", lambda v: v.rank > 2 and g.opset >= 21)
            given = [value, *(weight(g, [value.static(1)], value) for _ in range(2))]
            g.add("GroupNormalization", given, exact=False, num_groups=g.int(1, 2))
        case 5:
            value = g.taken("LpNormalization", lambda v: v.rank > 0)
            g.add("LpNormalization", [value], exact=False, axis=axis_of(g, value), p=g.int(1, 2))
        case _:
            value = g.taken("LRN", lambda v: v.rank == 4)
            g.add("LRN", [value], exact=False, size=g.one((1, 3)))


def written_norm(g: Grower) -> None:
    """A layer normalisation in its parts, as a rewrite looks for it."""
    value = g.taken("LayerNormalization", lambda v: v.rank > 1 and v.dtype == np.float32)
    mean = _mean(g, value)
    (centred,) = g.add("Sub", [value, mean])
    square = g.one(("Mul", "Pow"))
    twice = centred if square == "Mul" else g.constant(2.0, np.float32)
    variance = _mean(g, g.add(square, [centred, twice], exact=False)[0])
    (safe,) = g.add("Add", [variance, g.constant(1e-5, np.float32)], exact=False)
    (root,) = g.add("Sqrt", [safe], exact=False)
    (result,) = g.add("Div", [centred, root], exact=False)
    if g.chance(0.7):
        (result,) = g.add("Mul", [result, partner(g, result)])
        g.add("Add", [result, partner(g, result)])


def _mean(g: Grower, value: Value) -> Value:
    if g.opset >= 18:
        return g.add("ReduceMean", [value, g.constant([-1], np.int64)], exact=False, keepdims=1)[0]
    return g.add("ReduceMean", [value], exact=False, keepdims=1, axes=[-1])[0]


def several(g: Grower) -> None:
    """Products of one tensor, biased: what a rewrite merges."""
    value = g.pick(lambda v: v.rank > 1 and v.dtype == np.float32)
    size = value.static(value.rank - 1)
    made = [g.add("MatMul", [value, weight(g, (size, g.int(2, 3)), value)])[0] for _ in range(3)]
    for each in made:
        width = each.static(each.rank - 1)
        g.add(
            "Add", [each, weight(g, [width], each)] if g.chance(0.8) else [each, partner(g, each)]
        )
    if not broadcasts(made[0], made[1]):
        raise DroppedError
    g.add("Mul", made[:2])


FAMILY = (
    reduce,
    reduce,
    reduce,
    product,
    product,
    squares,
    gemm,
    einsum,
    normalised,
    normalised,
    written_norm,
    several,
)
