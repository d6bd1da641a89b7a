"""Inputs that mark positions with 1 and the rest with 0, recognised by their uses in a graph."""

import onnx_ir as ir

from compiler_worker.master.input_values.graph_constants import constant

# What keeps 0 and 1, in whatever type and wherever they are moved.
_KEEPS = frozenset(
    {
        "Cast",
        "Concat",
        "Expand",
        "Flatten",
        "Identity",
        "Reshape",
        "Slice",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
_COMPARES = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_TAKES_BOOLS = frozenset({"And", "Not", "Or", "Where", "Xor"})


def is_mask(value: ir.Value) -> bool:
    """Whether a value is rows of positions, each valid or not.

    It is where it, or a product of it with itself (pairs of positions), is cast to booleans,
    compared with 0 or 1, or taken from 1 (as in `(1 - mask) * -10000`); it is not where it is
    compared with any other number too.
    """
    if value.shape is None or len(value.shape) < 2 or value.shape[-1] == 1:
        return False
    signs = _signs(value, {value})
    return True in signs and False not in signs


def _signs(value: ir.Value, seen: set[ir.Value]) -> set[bool]:
    """True for each use as a mask, False for each use that no mask has.

    Args:
        value: the input, or what keeps its 0 and 1.
        seen: the input, and all that was found to keep them; more is added.
    """
    signs = set[bool]()
    for use in value.uses():
        node = use.node
        output = use.node.outputs[0]
        if _keeps(node, use.idx, seen) and output not in seen:
            seen.add(output)
            to_bool = node.op_type == "Cast" and output.dtype is ir.DataType.BOOL
            signs |= {True} if to_bool and not _is_bool(value) else _signs(output, seen)
        elif node.op_type in _COMPARES | {"Sub"}:
            signs |= _sign_of_number(node, use.idx)
        elif node.op_type in _TAKES_BOOLS and _is_bool(value):
            signs.add(True)
    return signs


def _keeps(node: ir.Node, index: int, seen: set[ir.Value]) -> bool:
    # The last factor that is found to be the input's makes a product of it with itself.
    is_square = node.op_type == "Mul" and all(each in seen for each in node.inputs)
    return is_square or (node.op_type in _KEEPS and index == 0)


def _sign_of_number(node: ir.Node, index: int) -> set[bool]:
    number = constant(node.inputs[1 - index])
    if number is None:
        return set()
    if node.op_type == "Sub":
        return {True} if index == 1 and (number == 1).all() else set()
    return {bool(((number == 0) | (number == 1)).all())}


def _is_bool(value: ir.Value) -> bool:
    return value.dtype is ir.DataType.BOOL
