"""Parts of models in the forms that exporters write and rewrites look for."""

from __future__ import annotations

import numpy as np

from tests.faults.graphs.drawing import constant, partner, proto_type
from tests.faults.graphs.grower import DroppedError, Grower, Value

_ROOT_OF_HALF = 0.7071067811865476


def attention(g: Grower) -> None:
    """Products, a scale, a mask and casts in any of their places."""
    queries = g.pick(lambda v: v.rank > 1 and v.dtype == np.float32 and v.static(v.rank - 1))
    keys = _like(g, queries)
    perm = [*range(keys.rank - 2), keys.rank - 1, keys.rank - 2]
    (turned,) = g.add("Transpose", [keys], perm=perm)
    scale = g.constant(g.one((0.5, 0.25, 0.125)), np.float32)
    if g.chance(0.3):
        (queries,) = g.add("Mul", [queries, scale])
    (scores,) = g.add("MatMul", [queries, turned])
    if g.chance(0.6):
        (scores,) = g.add(g.one(("Mul", "Div")), [scores, scale])
    scores = _masked(g, scores)
    if g.chance(0.2):
        (scores,) = g.add("Cast", [scores], to=proto_type(g.one((np.float64, np.float16))))
    (weights,) = g.add("Softmax", [scores], exact=False, axis=g.one((-1, -1, -1, scores.rank - 2)))
    if weights.dtype != np.float32:
        (weights,) = g.add("Cast", [weights], to=1)
    values = _like(g, keys)
    g.add("MatMul", [weights, values], exact=False)


def _like(g: Grower, value: Value) -> Value:
    """Another value of the same sizes."""
    found = [v for v in g.values if v.dtype == value.dtype and v.shapes == value.shapes]
    other = g.one(found)
    return other if g.chance(0.7) else g.add("Add", [other, partner(g, other)])[0]


def _masked(g: Grower, scores: Value) -> Value:
    if g.chance(0.4):
        return scores
    if g.chance(0.5):
        return g.add("Add", [scores, partner(g, scores)])[0]
    mask = partner(g, scores, np.bool_)
    low = g.constant(g.one((-1e4, -3.0, float(np.finfo(np.float32).min))), np.float32)
    given = [mask, scores, low] if g.chance(0.5) else [mask, low, scores]
    return _unlimited(g, given)


def _unlimited(g: Grower, given: list[Value]) -> Value:
    if abs(float(given[1].arrays[0].flat[0] if given[1].arrays[0].size else 0)) > 1e5:
        raise DroppedError
    return g.add("Where", given)[0]


def gelu(g: Grower) -> None:
    value = g.pick(lambda v: v.dtype == np.float32)
    half, one = g.constant(0.5, np.float32), g.constant(1.0, np.float32)
    if g.chance(0.5):
        (inner,) = g.add("Mul", [value, g.constant(_ROOT_OF_HALF, np.float32)], exact=False)
        (curve,) = g.add("Erf", [inner], exact=False)
    else:
        (cube,) = g.add("Pow", [value, g.constant(3.0, np.float32)], exact=False)
        (cube,) = g.add("Mul", [cube, g.constant(0.044715, np.float32)], exact=False)
        (inner,) = g.add("Add", [value, cube], exact=False)
        (inner,) = g.add("Mul", [inner, g.constant(0.7978845608, np.float32)], exact=False)
        (curve,) = g.add("Tanh", [inner], exact=False)
    (curve,) = g.add("Add", [curve, one], exact=False)
    (made,) = g.add("Mul", [value, curve], exact=False)
    g.add("Mul", [made, half], exact=False)


def attention_op(g: Grower) -> None:
    """ONNX's own, over heads in an axis of theirs or side by side."""
    queries = g.taken("Attention", lambda v: v.rank in (3, 4) and v.dtype == np.float32)
    keys, values = _like(g, queries), _like(g, queries)
    ways = {"is_causal": g.int(0, 1), "scale": g.one((None, 0.5)), "softcap": g.one((None, 2.0))}
    if queries.rank == 3:
        width = queries.static(2)
        heads = g.one([n for n in (1, 2) if width and width % n == 0])
        ways |= {"q_num_heads": heads, "kv_num_heads": heads}
    g.add("Attention", [queries, keys, values], exact=False, **ways)


def rotated(g: Grower) -> None:
    """Halves changed with each other, one negated: rotary positions."""
    value = g.pick(lambda v: v.rank > 1 and v.dtype == np.float32)
    width = value.static(value.rank - 1)
    if not width or width % 2:
        raise DroppedError
    ends = [g.constant([n], np.int64) for n in (0, width // 2, width, -1)]
    (first,) = g.add("Slice", [value, ends[0], ends[1], ends[3]])
    (second,) = g.add("Slice", [value, ends[1], ends[2], ends[3]])
    (second,) = g.add("Neg", [second])
    (turned,) = g.add("Concat", [second, first], axis=-1)
    (left,) = g.add("Mul", [value, constant(g, (width,), np.float32)])
    (right,) = g.add("Mul", [turned, constant(g, (width,), np.float32)])
    g.add("Add", [left, right])


FAMILY = (attention, attention, attention, gelu, attention_op, rotated)
