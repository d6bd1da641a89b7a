"""What each op requires of an integer operand, given what is required of its outputs.

A rule takes the walk, a node and the place of the operand among its inputs, and gives spans in
the operand's axes. Semantics: https://onnx.ai/onnx/operators
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from compiler_worker.master.input_values.graph_constants import constant
from compiler_worker.master.input_values.guards import guard_of
from compiler_worker.master.input_values.input_uses import InputUses, Rule
from compiler_worker.master.input_values.spans import Bounds, Spans
from compiler_worker.master.input_values.value_shapes import known_shape

_END = 2**31 - 1  # what exporters write for "to the end", or more


def _same(walk: InputUses, node: ir.Node, index: int) -> Spans:
    return walk.spans(node.outputs[0]) if index == 0 else Spans.of()


def _moved(walk: InputUses, node: ir.Node, index: int) -> Spans:
    return walk.moved(_same(walk, node, index))


def _partly(walk: InputUses, node: ir.Node, _index: int) -> Spans:
    return walk.partly(walk.spans(node.outputs[0]))


def _cast(walk: InputUses, node: ir.Node, index: int) -> Spans:
    to = node.outputs[0].dtype
    keeps = to is not None and (to.is_integer() or to.is_floating_point())
    return _same(walk, node, index) if keeps else Spans.of()


def _transpose(walk: InputUses, node: ir.Node, _index: int) -> Spans:
    found = walk.spans(node.outputs[0])
    if found.is_uniform:
        return found
    perm = _ints(node, "perm") or list(range(found.low.ndim))[::-1]
    return found.ends(lambda bounds: bounds.transpose(np.argsort(perm)))


def _concat(walk: InputUses, node: ir.Node, index: int) -> Spans:
    found = walk.spans(node.outputs[0])
    axis = _int(node, "axis", 0)
    if found.is_uniform:
        return found
    sizes = [_size(each, axis) for each in node.inputs[: index + 1]]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return found.joined([axis % found.low.ndim], is_strict=walk.is_strict)
    return found.part(axis % found.low.ndim, sum(known[:-1]), known[-1])


def _slice(walk: InputUses, node: ir.Node, index: int) -> Spans:
    shape = known_shape(node.inputs[0])
    found = walk.spans(node.outputs[0])
    cuts = _cuts(node, len(shape)) if index == 0 and shape else None
    if cuts is None or shape is None:
        return walk.partly(found) if index == 0 else Spans.of()
    for axis, places in cuts.items():
        size = shape[axis]
        if places == slice(0, None, 1):
            continue
        if size is None:
            return walk.partly(found)
        found = found.placed(len(shape), axis, size, np.arange(size, dtype=np.float64)[places])
    return found


def _cuts(node: ir.Node, rank: int) -> dict[int, slice] | None:
    """By axis, the places that a Slice keeps; None where they are not constant."""
    given = [_constants(node, i + 1, name) for i, name in enumerate(("starts", "ends", "axes"))]
    starts, ends, axes = given
    steps = _constants(node, 4, "steps")
    if starts is None or ends is None or (len(node.inputs) > 3 and axes is None):
        return None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    cuts = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        is_whole = start == 0 and end >= _END and step == 1
        # Backwards to before the first element is to None in Python.
        last = None if end >= _END or (step < 0 and end <= -_END) else end
        cuts[axis % rank] = slice(0, None, 1) if is_whole else slice(start, last, step)
    return cuts


def _split(walk: InputUses, node: ir.Node, index: int) -> Spans:
    shape = known_shape(node.inputs[0])
    axis = _int(node, "axis", 0)
    if index or not shape:
        return Spans.of()
    axis %= len(shape)
    sizes = [_size(output, axis) for output in node.outputs]
    known = [each for each in sizes if each is not None]
    size = shape[axis]
    found = Spans.of()
    start = 0
    for output, each in zip(node.outputs, sizes, strict=True):
        spans = walk.spans(output)
        if size is None or each is None or len(known) < len(sizes):
            found &= walk.partly(spans)
            continue
        places = np.arange(start, start + each, dtype=np.float64)
        found &= spans if spans.is_open else spans.placed(len(shape), axis, size, places)
        start += each
    return found


def _gather(walk: InputUses, node: ir.Node, index: int) -> Spans:
    axis = _int(node, "axis", 0)
    return walk.looked_up(node, axis) if index == 1 else selected(walk, node, axis)


def selected(walk: InputUses, node: ir.Node, axis: int) -> Spans:
    """Of what is itself gathered from: columns that a model takes apart.

    Args:
        walk: finds what the node's output may hold.
        node: selects by its second input, where that is constant.
        axis: of the first input.
    """
    found = walk.spans(node.outputs[0])
    shape = known_shape(node.inputs[0])
    places = constant(node.inputs[1])
    size = _size(node.inputs[0], axis)
    if found.is_open or places is None or places.ndim > 1 or not shape or size is None:
        return walk.partly(found)
    axis %= len(shape)
    if places.ndim == 0 and not found.is_uniform:
        found = found.ends(lambda bounds: np.expand_dims(bounds, axis))
    return found.placed(len(shape), axis, size, np.atleast_1d(places) % size)


def _gather_elements(walk: InputUses, node: ir.Node, index: int) -> Spans:
    """Also ScatterElements: what is looked up in, or written into, is only partly used."""
    is_index = index == 1
    return walk.looked_up(node, _int(node, "axis", 0)) if is_index else _partly(walk, node, index)


def _gather_nd(walk: InputUses, node: ir.Node, index: int) -> Spans:
    """Also ScatterND: the last axis of indices has a column for each axis of the table."""
    if index != 1:
        return _partly(walk, node, index)
    shape = known_shape(node.inputs[1])
    skipped = _int(node, "batch_dims", 0)
    width = shape[-1] if shape else None
    if not shape or width is None:
        return Spans.of()
    columns = [walk.looked_up(node, skipped + i) for i in range(width)]
    if width == 1:
        return columns[0]
    row = [1] * (len(shape) - 1) + [width]
    return Spans(
        low=np.array([float(each.low) for each in columns]).reshape(row),
        high=np.array([float(each.high) for each in columns]).reshape(row),
    )


def _one_hot(walk: InputUses, node: ir.Node, index: int) -> Spans:
    """ONNX has a meaning for classes that there are not: no position is hot."""
    depth = constant(node.inputs[1])
    is_known = index == 0 and depth is not None and depth.size == 1
    if depth is None or not is_known or not walk.is_strict:
        return Spans.of()
    return Spans.of(0, float(depth.reshape(-1)[0]) - 1)


def _where(walk: InputUses, node: ir.Node, index: int) -> Spans:
    operand = node.inputs[index]
    if index == 0 or operand is None:
        return Spans.of()
    found = walk.spans(node.outputs[0])
    guard = guard_of(node.inputs[0], operand)
    if guard is None:
        return walk.partly(found)
    chosen = guard if index == 1 else guard.turned()
    return chosen.loosened(walk.moved(found), is_strict=walk.is_strict)


def _arithmetic(walk: InputUses, node: ir.Node, index: int) -> Spans:
    """Add, Sub and Mul of a constant, which may differ from column to column."""
    operand = node.inputs[index]
    shape = known_shape(node.inputs[index])
    other = constant(node.inputs[1 - index]) if len(node.inputs) == 2 else None
    if operand is None or other is None or shape is None or not _is_integer(operand):
        return Spans.of()
    rank = max(len(shape), other.ndim)
    # One number has no axes, and so leaves one span for all places.
    by = other.reshape(() if other.size == 1 else (1,) * (rank - other.ndim) + other.shape)
    found = _undone(node.op_type, index, walk.spans(node.outputs[0]), by)
    return found.fitted(shape, is_strict=walk.is_strict) if found else Spans.of()


def _undone(op_type: str, index: int, found: Spans, by: Bounds) -> Spans | None:
    if op_type == "Add":
        return found.ends(lambda bounds: bounds - by)
    if op_type == "Sub" and index == 0:
        return found.ends(lambda bounds: bounds + by)
    if op_type == "Sub":
        return Spans(low=np.asarray(by - found.high), high=np.asarray(by - found.low))
    if (by > 0).all():
        return Spans(
            low=np.asarray(np.ceil(found.low / by)), high=np.asarray(np.floor(found.high / by))
        )
    return None


def _clip(walk: InputUses, node: ir.Node, index: int) -> Spans:
    """Clip, Max and Min: what lies beyond a bound counts as the bound."""
    others = [constant(each) for i, each in enumerate(node.inputs) if i != index and each]
    bounds = [other for other in others if other is not None and other.size == 1]
    if (node.op_type == "Clip" and index) or len(bounds) < len(others):
        return Spans.of()
    low, high = _clip_ends(node, [float(each.reshape(-1)[0]) for each in bounds])
    found = walk.spans(node.outputs[0])
    # One value beyond each end shows whether an engine clips.
    beyond = (low - 1, high + 1) if walk.is_strict else (-np.inf, np.inf)
    is_low = np.isfinite(low) & (low >= found.low)
    is_high = np.isfinite(high) & (high <= found.high)
    return Spans(
        low=np.where(is_low, beyond[0], found.low), high=np.where(is_high, beyond[1], found.high)
    )


def _clip_ends(node: ir.Node, bounds: list[float]) -> tuple[float, float]:
    if node.op_type == "Max":
        return max(bounds, default=-np.inf), np.inf
    if node.op_type == "Min":
        return -np.inf, min(bounds, default=np.inf)
    low = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    high = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    return (
        -np.inf if low is None else float(low.reshape(-1)[0]),
        np.inf if high is None else float(high.reshape(-1)[0]),
    )


def _mod(walk: InputUses, node: ir.Node, index: int) -> Spans:
    """Any integer has a remainder; with `fmod` it has the sign of what was divided."""
    found = walk.moved(walk.spans(node.outputs[0]))
    by = constant(node.inputs[1])
    if index or by is None or by.size != 1 or found.is_open or float(by.reshape(-1)[0]) < 1:
        return Spans.of()
    size = float(by.reshape(-1)[0])
    if found.high < size - 1 or found.low > 0:
        return walk.partly(found)
    is_signed = bool(_int(node, "fmod", 0)) and float(found.low) > 1 - size
    low = 0.0 if is_signed else -size if walk.is_strict else -np.inf
    return Spans.of(low, 2 * size - 1 if walk.is_strict else np.inf)


def _negative(walk: InputUses, node: ir.Node, _index: int) -> Spans:
    found = walk.spans(node.outputs[0])
    return Spans(low=-found.high, high=-found.low)


def _absolute(walk: InputUses, node: ir.Node, _index: int) -> Spans:
    found = walk.spans(node.outputs[0])
    return Spans(low=-found.high, high=found.high)


def _into_body(walk: InputUses, node: ir.Node, index: int) -> Spans:
    """What a Loop or Scan is given is an input of its body, there maybe without an axis."""
    inner = node.attributes["body"].as_graph().inputs
    has_place = index < len(inner) and not (node.op_type == "Loop" and index < 2)
    return walk.moved(walk.spans(inner[index])) if has_place else Spans.of()


def _is_integer(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


def _size(value: ir.Value | None, axis: int) -> int | None:
    shape = known_shape(value)
    return shape[axis] if shape else None


def _int(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return attribute.as_int() if attribute else default


def _ints(node: ir.Node, name: str) -> list[int] | None:
    attribute = node.attributes.get(name)
    return list(attribute.as_ints()) if attribute else None


def _constants(node: ir.Node, index: int, name: str) -> Sequence[int] | None:
    """Numbers that are an attribute at old opsets and an input at others."""
    found = constant(node.inputs[index]) if len(node.inputs) > index else None
    return _ints(node, name) if found is None else [int(each) for each in found.reshape(-1)]


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Identity", "Dropout"), _same),
    **dict.fromkeys(("Expand", "Flatten", "Pad", "Reshape"), _moved),
    **dict.fromkeys(("Squeeze", "Tile", "Unsqueeze"), _moved),
    **dict.fromkeys(("Add", "Mul", "Sub"), _arithmetic),
    **dict.fromkeys(("Clip", "Max", "Min"), _clip),
    **dict.fromkeys(("GatherElements", "Scatter", "ScatterElements"), _gather_elements),
    **dict.fromkeys(("GatherND", "ScatterND"), _gather_nd),
    **dict.fromkeys(("Loop", "Scan"), _into_body),
    "Abs": _absolute,
    "Cast": _cast,
    "Compress": _partly,
    "Concat": _concat,
    "Gather": _gather,
    "Mod": _mod,
    "Neg": _negative,
    "OneHot": _one_hot,
    "Slice": _slice,
    "Split": _split,
    "Transpose": _transpose,
    "Where": _where,
}
