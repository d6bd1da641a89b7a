"""Shapes of values, also behind ops of ONNX-ML, of which ONNX's own inference knows none."""

from collections.abc import Sequence

import onnx_ir as ir

Shape = list[int | None]
# Of their first input's shape.
_ALIKE = frozenset({"Binarizer", "Cast", "Clip", "Identity", "Imputer", "Normalizer", "Scaler"})


def known_shape(value: ir.Value | None) -> Shape | None:
    """A value's sizes, None for a dynamic one; None where not even their number is known."""
    if value is None:
        return None
    if value.shape is not None:
        return [dim if isinstance(dim, int) else None for dim in value.shape]
    node = value.producer()
    if node is None or node.op_type not in (*_ALIKE, "Concat"):
        return None
    shapes = [known_shape(each) for each in node.inputs]
    return _concatenated(shapes, node) if node.op_type == "Concat" else shapes[0]


def _concatenated(shapes: Sequence[Shape | None], node: ir.Node) -> Shape | None:
    known = [shape for shape in shapes if shape]
    if len(known) < len(shapes):
        return None
    axis = node.attributes["axis"].as_int() % len(known[0])
    sizes = [shape[axis] for shape in known]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    return [*known[0][:axis], total, *known[0][axis + 1 :]]
