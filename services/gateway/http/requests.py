"""An inference request in KServe's JSON, with or without binary tensors, to a ModelInferRequest."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as member
from typing import Any, Final

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.request_wire import raw_input_head
from services.contracts.transport.frames import Payload
from services.contracts.transport.large_buffer import Take
from services.gateway.http.fields import Document, checked, document_from_json, field, optional
from services.gateway.http.json_values import bytes_from_values
from services.pb import open_inference_v2_pb2 as pb

# Below, a copy through a socket costs less than memory that is shared with a replica.
_LEAST_TAKEN: Final = 64 << 10
_REGION: Final = "shared_memory_region"
_INT64: Final = range(-(2**63), 2**63)


@dataclass(kw_only=True)
class Wanted:
    """How outputs are to be sent: in binary or as JSON.

    Attributes:
        default: of outputs that the request does not name.
        by_name: of those that it names.
    """

    default: bool = False
    by_name: dict[str, bool] = member(default_factory=dict)

    def is_binary(self, output: str) -> bool:
        """Whether that output is sent in binary."""
        return self.by_name.get(output, self.default)


def request_from_body(
    body: Payload, json_length: int | None, model: tuple[str, str], take: Take | None = None
) -> tuple[Payload, Wanted]:
    """A serialised ModelInferRequest, and how its answer is wanted.

    Args:
        body: of the HTTP request: JSON, and behind it the tensors that are sent in binary.
        json_length: bytes of JSON; None where all of it is.
        model: its name and version.
        take: gives memory for a large request.

    Raises:
        InvalidRequestError: it is no such request.
    """
    view = memoryview(body)
    length = len(view) if json_length is None else json_length
    if not 0 <= length <= len(view):
        raise InvalidRequestError(
            f"inference-header-content-length is {length}, the body has {len(view)} bytes"
        )
    document = document_from_json(view[:length])
    try:
        message, raw, wanted = _built(document, view[length:], model)
        return _joined(message.SerializeToString(), raw, take), wanted
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"a string has no form in UTF-8: {error}") from error


def _built(
    document: Document, tensors: memoryview, model: tuple[str, str]
) -> tuple[pb.ModelInferRequest, list[Payload], Wanted]:
    where = "the request"
    request = pb.ModelInferRequest(
        model_name=model[0], model_version=model[1], id=optional(document, "id", "", where)
    )
    parameters: Document = optional(document, "parameters", {}, where)
    wanted = Wanted(default=parameters.pop("binary_data_output", False) is True)
    _set(request.parameters, parameters, where)
    raw: list[Payload] = []
    for number, each in enumerate(field(document, "inputs", list, where)):
        where = f"input {number}"
        tensors = _add_input(request, checked(each, dict, where), tensors, raw, where)
    if tensors:
        raise InvalidRequestError(f"{len(tensors)} bytes lie behind the last binary tensor")
    for number, each in enumerate(optional(document, "outputs", [], "the request")):
        where = f"requested output {number}"
        asked = checked(each, dict, where)
        name = field(asked, "name", str, where)
        parameters = optional(asked, "parameters", {}, where)
        wanted.by_name[name] = parameters.pop("binary_data", wanted.default) is True
        _set(request.outputs.add(name=name).parameters, parameters, where)
    return request, raw, wanted


def _add_input(
    request: pb.ModelInferRequest,
    tensor: Document,
    tensors: memoryview,
    raw: list[Payload],
    where: str,
) -> memoryview:
    """Take an input's bytes; what is left of the binary tensors."""
    name = field(tensor, "name", str, where)
    datatype = field(tensor, "datatype", str, where)
    shape = field(tensor, "shape", list, where)
    if not all(type(dim) is int and dim in _INT64 for dim in shape):
        raise InvalidRequestError(f"{where}, '{name}': expected integers as shape, got {shape}")
    parameters: Document = optional(tensor, "parameters", {}, where)
    size = parameters.pop("binary_data_size", None)
    added = request.inputs.add(name=name, datatype=datatype, shape=shape)
    _set(added.parameters, parameters, where)
    if size is not None:
        if type(size) is not int or not 0 <= size <= len(tensors):
            raise InvalidRequestError(
                f"{where}, '{name}': binary_data_size is {size}, {len(tensors)} bytes are left"
            )
        raw.append(tensors[:size])
        return tensors[size:]
    if _REGION not in parameters:
        values = field(tensor, "data", list, f"{where}, '{name}'")
        raw.append(bytes_from_values(values, datatype, shape, f"{where}, '{name}'"))
    return tensors


def _set(parameters: Any, given: Mapping[str, Any], where: str) -> None:
    for key, value in given.items():
        kind = type(value)
        if kind is bool:
            parameters[key].bool_param = value
        elif kind is str:
            parameters[key].string_param = value
        elif kind is float:
            parameters[key].double_param = value
        elif kind is int and value in _INT64:
            parameters[key].int64_param = value
        else:
            raise InvalidRequestError(
                f"{where}, parameter '{key}': expected a boolean, string or number of 64 bits"
            )


def _joined(head: bytes, raw: list[Payload], take: Take | None) -> Payload:
    pieces: list[Payload] = [head]
    for each in raw:
        pieces += (raw_input_head(len(each)), each)
    size = sum(map(len, pieces))
    memory = take(size) if take is not None and size >= _LEAST_TAKEN else None
    if memory is None:
        return b"".join(pieces)
    at = 0
    for piece in pieces:
        memory[at : at + len(piece)] = piece
        at += len(piece)
    return memory
