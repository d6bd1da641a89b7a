"""Answers of handlers, messages of the protocol, to HTTP's bodies."""

from typing import Any

from google.protobuf.message import Message

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.request_wire import split_response
from services.contracts.transport.frames import Payload
from services.gateway.http.answers import BINARY, JSON, Answer, json_bytes
from services.gateway.http.json_values import values_from_bytes
from services.gateway.http.requests import Wanted
from services.pb import open_inference_v2_pb2 as pb

_LENGTH = b"inference-header-content-length"


def answer_from_response(payload: Payload, wanted: Wanted) -> Answer:
    """The answer to an inference request.

    Raises:
        InvalidRequestError: an output cannot be sent as JSON.
    """
    head, request_id, raw = split_response(payload)
    response = pb.ModelInferResponse.FromString(head)
    document: dict[str, Any] = {
        "model_name": response.model_name,
        "model_version": response.model_version,
    }
    if request_id:
        document["id"] = request_id.decode()
    if response.parameters:
        document["parameters"] = _plain_parameters(response.parameters)
    pieces: list[bytes | memoryview] = [b""]
    document["outputs"] = [
        _output(tensor, content, pieces if wanted.is_binary(tensor.name) else None)
        for tensor, content in zip(response.outputs, raw, strict=True)
    ]
    try:
        pieces[0] = json_bytes(document)
    except ValueError as error:
        raise InvalidRequestError(
            "an output has NaN or infinity, which JSON has not; ask for binary data"
        ) from error
    if len(pieces) == 1:
        return Answer(bytes(pieces[0]), JSON)
    length = (_LENGTH, b"%d" % len(pieces[0]))
    return Answer(b"".join(pieces), BINARY, headers=(length,))


def _output(
    tensor: "pb.ModelInferResponse.InferOutputTensor",
    raw: memoryview,
    pieces: list[bytes | memoryview] | None,
) -> dict[str, Any]:
    """An output's part of the document; in binary its bytes are one more of the pieces."""
    shape = list(tensor.shape)
    parameters = _plain_parameters(tensor.parameters)
    output = {"name": tensor.name, "datatype": tensor.datatype, "shape": shape}
    if "shared_memory_region" in parameters:
        pass
    elif pieces is not None:
        parameters["binary_data_size"] = len(raw)
        pieces.append(raw)
    else:
        where = f"output '{tensor.name}'"
        output["data"] = values_from_bytes(raw, tensor.datatype, shape, where)
    return output | ({"parameters": parameters} if parameters else {})


def _plain_parameters(parameters: Any) -> dict[str, Any]:
    return {
        key: getattr(value, value.WhichOneof("parameter_choice"))
        for key, value in parameters.items()
    }


def plain(message: Message) -> dict[str, Any]:
    """A message as JSON: all its fields under their own names, and numbers as numbers.

    protobuf's own mapping writes integers of 64 bits as strings, which no client of Triton takes.
    """
    document: dict[str, Any] = {}
    for each in message.DESCRIPTOR.fields:
        if each.has_presence and not message.HasField(each.name):
            continue
        value = getattr(message, each.name)
        entry = each.message_type
        if entry is not None and entry.GetOptions().map_entry:
            is_plain = entry.fields_by_name["value"].message_type is None
            document[each.name] = {k: v if is_plain else plain(v) for k, v in value.items()}
        elif each.is_repeated:
            document[each.name] = [_value(each, item) for item in value]
        else:
            document[each.name] = _value(each, value)
    return document


def _value(descriptor: Any, value: Any) -> Any:
    if descriptor.message_type is not None:
        return plain(value)
    if descriptor.enum_type is not None:
        return descriptor.enum_type.values_by_number[value].name
    return value
