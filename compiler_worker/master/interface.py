"""The inputs and outputs of a master as the contracts write them."""

from collections.abc import Sequence

import onnx_ir as ir

from services.contracts.errors import UnsupportedGraphError
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, TensorSpec

DATATYPE_FROM_IR = {
    ir.DataType.from_numpy(dtype): name for name, dtype in NUMPY_FROM_DATATYPE.items()
}


def name_dynamic_dims(model: ir.Model) -> None:
    """Give each dynamic dimension without a name one: `<tensor>_dim<axis>`.

    A recipe speaks of dimensions by name. Exporters that write -1 mean a dynamic one.
    """
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
            is_unnamed = dim < 0 if isinstance(dim, int) else not dim.value
            if is_unnamed:
                value.shape[axis] = f"{value.name}_dim{axis}"


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
