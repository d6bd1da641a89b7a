"""How many samples a request has: read from one input's shape, while bytes are stepped over."""

from typing import Final

from services.contracts.frames import Payload
from services.contracts.manifest import ModelVersion
from services.contracts.protobuf_wire import VARINT, Field, fields_of, varint

# Field numbers of ModelInferRequest and of its inputs.
_INPUTS: Final = 5
_NAME, _SHAPE = 1, 3


def num_rows(body: Payload, model: ModelVersion) -> int:
    """Samples of a request that a replica of this model answered; 1 where there is no batch."""
    batch_dim = model.recipe.batching.batch_dim
    for spec in model.master.inputs:
        if batch_dim in spec.shape:
            shape = _shape_of(body, spec.name.encode())
            axis = spec.shape.index(batch_dim)
            return shape[axis] if axis < len(shape) else 1
    return 1


def _shape_of(body: Payload, name: bytes) -> list[int]:
    """The shape that a request gives an input; none when it does not name it."""
    for tensor in fields_of(body):
        if tensor.number == _INPUTS:
            fields = list(fields_of(body, tensor.begin, tensor.end))
            if any(f.number == _NAME and body[f.begin : f.end] == name for f in fields):
                return [dim for f in fields if f.number == _SHAPE for dim in _dims(body, f)]
    return []


def _dims(body: Payload, field: Field) -> list[int]:
    """Of a shape that is packed, as all libraries write it, or not, as they may."""
    if field.wire_type == VARINT:
        return [varint(body, field.begin)[0]]
    dims, at = list[int](), field.begin
    while at < field.end:
        dim, at = varint(body, at)
        dims.append(dim)
    return dims
