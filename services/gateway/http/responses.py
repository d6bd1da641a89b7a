"""Answers of handlers, messages of the protocol, to HTTP's bodies."""

from functools import lru_cache
from typing import Any, Final

from google.protobuf.message import Message

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.request_wire import split_response
from services.contracts.transport.frames import Payload
from services.gateway.http.answers import BINARY, JSON, HttpAnswer, json_bytes
from services.gateway.http.json_values import json_from_bytes
from services.gateway.http.requests import (
    JSON_LENGTH,
    MAX_REMEMBERED_BYTES,
    NUM_REMEMBERED,
    OutputForms,
)
from services.pb import open_inference_v2_pb2 as pb

_REGION: Final = "shared_memory_region"


async def answer_from_response(payload: Payload, wanted: OutputForms) -> HttpAnswer:
    """The answer to an inference request.

    Raises:
        InvalidRequestError: an output cannot be sent as JSON.
    """
    head, request_id, raw = split_response(payload)
    sizes = tuple(map(len, raw))
    if len(head) <= MAX_REMEMBERED_BYTES:
        document = _remembered(head, sizes, wanted)
    else:
        document = _all_binary(head, sizes, wanted)
    if document is None:
        document, raw = await _mixed(head, raw, wanted)
    if request_id:
        document = b'{"id":%b,%b' % (json_bytes(request_id.decode()), document[1:])
    if not raw:
        return HttpAnswer(document, JSON)
    return HttpAnswer(
        b"".join((document, *raw)), BINARY, headers=((JSON_LENGTH.encode(), b"%d" % len(document)),)
    )


def _all_binary(head: bytes, sizes: tuple[int, ...], wanted: OutputForms) -> bytes | None:
    """The JSON before outputs that are all sent in binary; None where one is not."""
    response = pb.ModelInferResponse.FromString(head)
    if not sizes or not all(wanted.is_binary(tensor.name) for tensor in response.outputs):
        return None
    outputs = [
        _described(tensor, binary_data_size=size)
        for tensor, size in zip(response.outputs, sizes, strict=True)
    ]
    return json_bytes(_document(response) | {"outputs": outputs})


_remembered = lru_cache(NUM_REMEMBERED)(_all_binary)


async def _mixed(
    head: bytes, raw: list[memoryview], wanted: OutputForms
) -> tuple[bytes, list[memoryview]]:
    """The JSON, and the outputs that are sent behind it."""
    response = pb.ModelInferResponse.FromString(head)
    binary = []
    parts = [json_bytes(_document(response))[:-1], b',"outputs":[']
    for number, (tensor, content) in enumerate(zip(response.outputs, raw, strict=True)):
        if number:
            parts.append(b",")
        if wanted.is_binary(tensor.name):
            binary.append(content)
            parts.append(json_bytes(_described(tensor, binary_data_size=len(content))))
        elif _REGION in tensor.parameters:
            parts.append(json_bytes(_described(tensor)))
        else:
            parts += await _with_data(tensor, content)
    # Once, as it may have a hundred megabytes.
    return b"".join((*parts, b"]}")), binary


async def _with_data(
    tensor: "pb.ModelInferResponse.InferOutputTensor", content: memoryview
) -> list[bytes]:
    try:
        data = await json_from_bytes(content, tensor.datatype, list(tensor.shape))
        return [json_bytes(_described(tensor))[:-1], b',"data":', *data, b"}"]
    except ValueError as error:
        raise InvalidRequestError(
            "an output has NaN or infinity, which JSON cannot represent; ask for binary data"
        ) from error


def _document(response: pb.ModelInferResponse) -> dict[str, Any]:
    document = {"model_name": response.model_name, "model_version": response.model_version}
    parameters = _plain_parameters(response.parameters)
    return document | ({"parameters": parameters} if parameters else {})


def _described(tensor: "pb.ModelInferResponse.InferOutputTensor", **more: int) -> dict[str, Any]:
    """An output without its values."""
    parameters = _plain_parameters(tensor.parameters)
    if _REGION not in parameters:
        parameters |= more
    output = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
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
