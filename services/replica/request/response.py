"""An engine's outputs to the bytes of a response.

Responses always carry raw contents, one entry for each output, because clients pair outputs and
contents by position.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from services.contracts.errors import EngineError, InvalidRequestError
from services.contracts.kserve.request_limits import check_output_room
from services.contracts.kserve.request_wire import join_response
from services.contracts.kserve.tensors import (
    DATATYPE_FROM_NUMPY,
    NUMPY_FROM_DATATYPE,
    Array,
    bytes_from_array,
)
from services.pb import open_inference_v2_pb2 as pb
from services.replica.request import classification
from services.replica.request.classification import classified
from services.replica.request.infer_call import InferCall
from services.replica.request.signature import Signature

_MAX_KNOWN_HEADS = 1024
# Below this, one more copy of an output is cheaper than the views that spare it.
_COPIED_BYTES = 16_384


def response_from_outputs(
    call: InferCall, outputs: Mapping[str, Array], signature: Signature
) -> bytes:
    """Encode a call's outputs as a serialised ModelInferResponse.

    Args:
        call: has the wanted outputs, in order, and the bytes that shared memory has room for.
        outputs: of the engine by name, of any shape, without padding.
        signature: of the model.

    Raises:
        EngineError: an output is missing, has another datatype than the model's, or strings
            that are none.
        InvalidRequestError: an output has more bytes than the request has room for.
    """
    arrays = [_checked_output(name, outputs, signature) for name in call.outputs]
    if call.classes:
        return _response_with_classes(call, arrays, signature)
    head = _response_head(call.outputs, tuple(array.shape for array in arrays), signature)
    head += _token_count(call.num_tokens)
    raw = [_raw(array) for array in arrays]
    if call.rooms:
        for name, data in zip(call.outputs, raw, strict=True):
            check_output_room(name, len(data), call.rooms.get(name, len(data)))
    return join_response(head, call.request_id.encode(), raw)


def _response_with_classes(call: InferCall, arrays: Sequence[Array], signature: Signature) -> bytes:
    response = pb.ModelInferResponse(model_name=signature.name, model_version=signature.version)
    contents: list[bytes | memoryview] = []
    for name, array in zip(call.outputs, arrays, strict=True):
        spec = signature.outputs[name]
        datatype = spec.datatype
        shape = array.shape
        raw = _raw(array)
        if num := call.classes.get(name):
            has_rows = signature.batch_dim is not None and spec.shape[:1] == (signature.batch_dim,)
            shape, raw = classified(array, num, has_rows=has_rows)
            datatype = classification.DATATYPE
        response.outputs.add(name=name, datatype=datatype, shape=shape)
        contents.append(raw)
    head = response.SerializeToString() + _token_count(call.num_tokens)
    return join_response(head, call.request_id.encode(), contents)


def _raw(array: Array) -> bytes | memoryview:
    # What numpy holds of strings is where they are.
    if array.nbytes < _COPIED_BYTES or array.dtype.hasobject:
        try:
            return bytes_from_array(array)
        except InvalidRequestError as error:  # no fault of the request's
            raise EngineError(f"an output of the engine: {error}") from error
    # bfloat16 exports no buffer of its own, hence the view as bytes.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


@lru_cache(maxsize=_MAX_KNOWN_HEADS)
def _token_count(num: int) -> bytes:
    """The parameter of a response with the number of tokens that texts became; none for 0."""
    response = pb.ModelInferResponse()
    if num:
        response.parameters["num_tokens"].int64_param = num
    return response.SerializeToString()


@lru_cache(maxsize=_MAX_KNOWN_HEADS)
def _response_head(
    names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], signature: Signature
) -> bytes:
    response = pb.ModelInferResponse(model_name=signature.name, model_version=signature.version)
    for name, shape in zip(names, shapes, strict=True):
        response.outputs.add(name=name, datatype=signature.outputs[name].datatype, shape=shape)
    return response.SerializeToString()


def _checked_output(name: str, outputs: Mapping[str, Array], signature: Signature) -> Array:
    if name not in outputs:
        raise EngineError(
            f"engine of model '{signature.name}' gave no output '{name}'; got {list(outputs)}"
        )
    array = outputs[name]
    wanted = signature.outputs[name].datatype
    if array.dtype != NUMPY_FROM_DATATYPE[wanted]:
        found = DATATYPE_FROM_NUMPY.get(array.dtype, str(array.dtype))
        raise EngineError(
            f"engine of model '{signature.name}': expected datatype {wanted} for output "
            f"'{name}', got {found}"
        )
    return array
