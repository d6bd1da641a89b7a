"""Ops that go element by element: arithmetic, comparisons, casts."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.faults.graphs.drawing import (
    FLOATS,
    INTS,
    axis_of,
    constant,
    drawn,
    holds,
    is_16_bits,
    newer_types,
    partner,
    proto_type,
    words,
)
from tests.faults.graphs.grower import DroppedError, Grower, Value

EXACT = words("Abs Neg Relu Identity Not BitwiseNot LeakyRelu IsNaN IsInf")
# A rounding more or less would decide of what they give.
STEPS = words("Floor Ceil Round Sign ThresholdedRelu Shrink Hardmax")
SMOOTH = words(
    "Exp Log Sqrt Reciprocal Sigmoid Tanh Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh "
    "Atanh Softplus Softsign Elu Selu Celu Gelu HardSigmoid HardSwish Mish Swish Softmax LogSoftmax"
)
STEEP = {"Log", "Sqrt", "Reciprocal", "Tan", "Asin", "Acos", "Acosh", "Atanh"}
BINARY = words(
    "Add Sub Mul Div Mod And Or Xor BitwiseAnd BitwiseOr BitwiseXor BitShift PRelu Add Mul"
)
MANY = words("Max Min Sum Mean")
COMPARED = words("Equal Less Greater LessOrEqual GreaterOrEqual")
_ALPHA = {"LeakyRelu": 0.5, "ThresholdedRelu": 0.5, "Elu": 0.5, "Celu": 2.0}


def unary(g: Grower) -> None:
    name = g.one(g.one((EXACT, STEPS, SMOOTH, SMOOTH)))
    value = g.taken(name, lambda v: v.is_exact or name not in STEPS)
    if name in STEEP and not value.is_exact and not holds(value, 0.01, 0.99):
        raise DroppedError
    attributes = {"alpha": _ALPHA.get(name)} if g.chance(0.5) else {}
    if name in ("Softmax", "LogSoftmax", "Hardmax"):
        attributes["axis"] = axis_of(g, value)
    if name == "Gelu" and g.chance(0.5):
        attributes["approximate"] = "tanh"
    if name == "Shrink":
        attributes |= {"lambd": 0.5, "bias": 0.25}
    g.add(name, [value], exact=name not in SMOOTH, **attributes)


def binary(g: Grower) -> None:
    name = g.one(BINARY)
    left = g.taken(name)
    right = partner(g, left)
    if g.chance(0.3) and name != "PRelu":
        left, right = right, left
    attributes = {}
    if name in ("Div", "Mod") and not left.is_float and not _divides(left, right):
        raise DroppedError
    if name == "Div" and right.is_float and not right.is_exact and not holds(right, 0.01, 1e3):
        raise DroppedError
    if name == "Mod":
        attributes["fmod"] = int(left.is_float or g.chance(0.5))
        if left.is_float and not (left.is_exact and right.is_exact):
            raise DroppedError
    if name == "BitShift":
        attributes["direction"] = g.one(("LEFT", "RIGHT"))
        if not holds(right, 0, 7):
            raise DroppedError
    g.add(name, [left, right], exact=name != "Div" or not left.is_float, **attributes)


def _divides(left: Value, right: Value) -> bool:
    """Not by zero; and the most negative number has no counterpart."""
    is_safe = right.dtype.kind == "u" or holds(left, np.iinfo(left.dtype).min + 1, np.inf)
    return is_safe and all(bool(np.all(array != 0)) for array in right.arrays)


def power(g: Grower) -> None:
    base = g.taken("Pow")
    to = g.one((base.dtype, np.float32, np.int64, np.int32))
    exponent = constant(g, (), to) if g.chance(0.6) else partner(g, base, to)
    if not base.is_float and not holds(exponent, 0, 3):
        raise DroppedError
    if base.is_float and not base.is_exact and not holds(base, 0.01, 100):
        raise DroppedError
    g.add("Pow", [base, exponent], exact=not (base.is_float or exponent.is_float))


def many(g: Grower) -> None:
    name = g.one(MANY)
    first = g.taken(name)
    inputs = [first] + [partner(g, first) for _ in range(g.int(0, 2))]
    g.add(name, inputs, exact=name != "Mean")


def compared(g: Grower) -> None:
    name = g.one(COMPARED)
    left = g.taken(name, lambda v: v.is_exact)
    right = partner(g, left)
    if right.is_exact:
        g.add(name, [left, right])


def where(g: Grower) -> None:
    condition = g.pick(lambda v: v.dtype == np.bool_)
    left = g.pick(lambda v: v.dtype != np.bool_)
    g.add("Where", [condition, left, partner(g, left)])


def clip(g: Grower) -> None:
    value = g.taken("Clip")
    low, high = sorted(drawn(g.rng, (2,), value.dtype), key=float)
    ends = [g.constant(end, value.dtype) if g.chance(0.7) else None for end in (low, high)]
    g.add("Clip", [value, *ends])


def cast(g: Grower) -> None:
    value = g.taken("Cast")
    to = np.dtype(g.one([*FLOATS, *INTS, np.bool_, *newer_types(g.opset)]))
    is_int = "int" in to.name
    if value.is_float and (is_int or to == np.bool_ or to.itemsize == 1):
        limits = ml_dtypes.iinfo(to) if is_int else None
        low, high = (limits.min, limits.max) if limits else (-1e4, 1e4)
        if not value.is_exact or not holds(value, low, high):
            raise DroppedError
    if not value.is_float and is_int and to.name.endswith(("int4", "int2")):
        limits = ml_dtypes.iinfo(to)
        if not holds(value, limits.min, limits.max):
            raise DroppedError
    if g.chance(0.2) and to.name in {np.dtype(f).name for f in FLOATS}:
        g.add("CastLike", [value, constant(g, (1,), to)])
    else:
        g.add("Cast", [value], to=proto_type(to))


def wider(g: Grower) -> None:
    """There and back: what a fold of casts looks at."""
    value = g.pick(lambda v: v.is_float and not is_16_bits(v))
    (there,) = g.add("Cast", [value], to=proto_type(g.one(FLOATS)))
    g.add("Cast", [there], to=value.type)


STEPS_TAKEN = (unary, unary, binary, binary, binary, power, many, compared, where, clip, cast, cast)
FAMILY = (*STEPS_TAKEN, wider)
