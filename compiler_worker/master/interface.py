"""The inputs and outputs of a master as the contracts write them."""

from collections.abc import Sequence

import onnx_ir as ir

from services.contracts.errors import UnsupportedGraphError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE

DATATYPE_FROM_IR = {
    ir.DataType.from_numpy(dtype): name for name, dtype in NUMPY_FROM_DATATYPE.items()
}


# What exporters write of dimensions that have no name.
_NO_NAMES = (None, "", "?", "None", "-1")


def label_dynamic_dims(model: ir.Model) -> set[str]:
    """Give each dynamic dimension without a name a label, and return the labels.

    Exporters that write -1 mean a dynamic one.

    Raises:
        UnsupportedGraphError: the rank of an input or output is unknown.
    """
    labels = set()
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is None:
            raise UnsupportedGraphError(
                f"the rank of '{value.name}' is unknown, a shape wanted (its dimensions may be "
                "dynamic); declare the shape when exporting"
            )
        # An output that was an input or another output has been named already.
        if value.shape.frozen:
            value.shape = value.shape.copy()
        for axis, dim in enumerate(value.shape):
            is_unnamed = dim < 0 if isinstance(dim, int) else dim.value in _NO_NAMES
            if is_unnamed:
                value.shape[axis] = label_of(value.name or "", axis)
                labels.add(label_of(value.name or "", axis))
    return labels


def label_of(tensor: str, axis: int) -> str:
    """What a dimension is called for want of a name."""
    return f"{tensor}_dim{axis}"


def tensor_specs(values: Sequence[ir.Value]) -> tuple[TensorSpec, ...]:
    """Describe graph inputs or outputs; raises UnsupportedGraphError for other datatypes."""
    return tuple(_tensor_spec(value) for value in values)


def _tensor_spec(value: ir.Value) -> TensorSpec:
    datatype = DATATYPE_FROM_IR.get(value.dtype) if value.dtype else None
    if datatype is None or value.shape is None or not isinstance(value.type, ir.TensorType):
        raise UnsupportedGraphError(
            f"'{value.name}' is {value.type}, a tensor of one of "
            f"{', '.join(NUMPY_FROM_DATATYPE)} wanted; cast it inside the model"
        )
    shape = tuple(dim if isinstance(dim, int) else str(dim.value) for dim in value.shape)
    return TensorSpec(name=value.name or "", datatype=datatype, shape=shape)
