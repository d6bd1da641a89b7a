"""Features that are scaled and shifted by constants, in ONNX's ops and in ONNX-ML's."""

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from compiler_worker.master.input_values.graph_constants import constant
from compiler_worker.master.input_values.value_shapes import known_shape

_Floats = NDArray[np.float64]


class ScaledFeatures(NamedTuple):
    """`output = factor * operand + offset`.

    Attributes:
        factor, offset: with the axes of the operand, or with none where one is for all places.
        is_scaler: whether it both scales and shifts, as what brings features to a usual size does.
    """

    factor: _Floats
    offset: _Floats
    output: ir.Value
    is_scaler: bool


def scaler_of(node: ir.Node) -> ScaledFeatures | None:
    """A Scaler, which takes its offset away and then multiplies by its scale."""
    shape = known_shape(node.inputs[0])
    scale = node.attributes.get("scale")
    offset = node.attributes.get("offset")
    scales = np.asarray(scale.as_floats() if scale else [], np.float64)
    before = np.asarray(offset.as_floats() if offset else [0.0], np.float64)
    # Of one that has other numbers than features nothing is known; it fails where it is run.
    if not shape or not {scales.size, before.size} <= {1, shape[-1]}:
        return None
    # The scale of a column that is constant may be 1 / 0.
    if not np.isfinite(scales).all() or not np.isfinite(before).all():
        return None
    factor = _placed(scales, len(shape))
    before = _placed(before, len(shape))
    return ScaledFeatures(factor, -before * factor, node.outputs[0], is_scaler=True)


def scaled_by(node: ir.Node, index: int) -> ScaledFeatures | None:
    """Add, Sub, Mul and Div of constants one after another, from a node on.

    Args:
        node: the first; None is returned where it is none of these.
        index: of the operand that is no constant.
    """
    found: ScaledFeatures | None = None
    kinds = set[bool]()
    while (step := _step(node, index)) is not None:
        factor, offset = step
        kinds.add(node.op_type in ("Mul", "Div"))
        before = found or ScaledFeatures(
            np.array(1.0), np.array(0.0), node.outputs[0], is_scaler=False
        )
        found = ScaledFeatures(
            before.factor * factor,
            before.offset * factor + offset,
            node.outputs[0],
            is_scaler=len(kinds) > 1,
        )
        uses = tuple(node.outputs[0].uses())
        if len(uses) != 1 or node.outputs[0].is_graph_output():
            break
        node, index = uses[0]
    return found


def table(node: ir.Node, name: str) -> _Floats:
    """An attribute of floats as rows with a column for each feature; no rows where it is none."""
    attribute = node.attributes.get(name)
    shape = known_shape(node.inputs[0])
    size = shape[-1] if shape else None
    numbers = np.asarray(attribute.as_floats() if attribute else [], np.float64)
    if not size or numbers.size % size:
        return np.empty((0, 0))
    return numbers.reshape(-1, size)


def _step(node: ir.Node, index: int) -> tuple[_Floats, _Floats] | None:
    """Factor and offset of one node."""
    if node.domain or len(node.inputs) != 2:
        return None
    by = constant(node.inputs[1 - index])
    shape = known_shape(node.outputs[0])
    operand = node.inputs[index]
    is_float = operand is not None and operand.dtype and operand.dtype.is_floating_point()
    if by is None or shape is None or not is_float:
        return None
    by = _placed(by, len(shape))
    match node.op_type, index:
        case "Add", _:
            return np.array(1.0), by
        case "Sub", 0:
            return np.array(1.0), -by
        # 1 - x is a mask turned round, and no feature.
        case "Sub", 1 if (by != 1).any():
            return np.array(-1.0), by
        case "Mul", _:
            return by, np.array(0.0)
        case "Div", 0 if by.all():
            return 1 / by, np.array(0.0)
        case _:
            return None


def _placed(numbers: _Floats, rank: int) -> _Floats:
    """With as many axes as an operand, or none."""
    if numbers.size == 1:
        return numbers.reshape(())
    return numbers.reshape((1,) * (rank - numbers.ndim) + numbers.shape)
