"""An inference request in KServe's JSON, with or without binary tensors, to a ModelInferRequest."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.request_wire import raw_input_head
from services.contracts.transport.frames import Payload
from services.contracts.transport.large_buffer import Take
from services.gateway.http.fields import Document, checked, document_from_json, field, optional
from services.gateway.http.json_values import bytes_from_values
from services.grpc_server.request.messages import Message
from services.pb import open_inference_v2_pb2 as pb

JSON_LENGTH: Final = "inference-header-content-length"
# Below, a copy through a socket costs less than memory that is shared with a replica.
_LEAST_TAKEN: Final = 64 << 10
# A client's JSON before binary tensors is mostly the same, and costs more than all else here.
MAX_REMEMBERED_BYTES: Final = 2048
NUM_REMEMBERED: Final = 1024
_REGION: Final = "shared_memory_region"
_INT64: Final = range(-(2**63), 2**63)
# Of numpy; the product of as many as fit in JSON would take minutes of the event loop.
_MOST_DIMS: Final = 32
# Each is an object of protobuf: as many as fit in JSON would hold the event loop for seconds.
_MOST_TENSORS: Final = 4096
_MOST_PARAMETERS: Final = 64


class OutputForms(NamedTuple):
    """How outputs are to be sent: in binary or as JSON.

    Attributes:
        is_default: in binary, unless named below.
        others: outputs that are sent the other way.
    """

    is_default: bool = False
    others: frozenset[str] = frozenset()

    def is_binary(self, output: str) -> bool:
        """Whether that output is sent in binary."""
        return self.is_default != (output in self.others)


class _Plan(NamedTuple):
    """What the JSON of a request says.

    Attributes:
        head: the message without its raw contents.
        contents: of each of these the bytes, or how many of the binary tensors' it has.
    """

    head: bytes
    contents: tuple[bytes | int, ...]
    wanted: OutputForms


def request_from_body(
    body: Sequence[Message], json_length: int | None, model: tuple[str, str], take: Take | None
) -> tuple[Payload, OutputForms]:
    """A serialised ModelInferRequest, and how its answer is wanted.

    Args:
        body: of the HTTP request, in pieces: JSON, and behind it the tensors sent in binary.
        json_length: bytes of JSON; None where all of it is.
        model: its name and version.
        take: gives memory for a large request.

    Raises:
        InvalidRequestError: it is no such request.
    """
    size = sum(map(len, body))
    length = size if json_length is None else json_length
    if length > size:
        raise InvalidRequestError(f"{JSON_LENGTH} is {length}, the body has {size} bytes")
    unread = _Unread(body)
    head = unread.take(length)
    raw = bytes(head[0]) if len(head) == 1 else b"".join(head)
    plan = (_remembered if length <= MAX_REMEMBERED_BYTES else _planned)(raw, model)
    num_binary = sum(each for each in plan.contents if isinstance(each, int))
    if num_binary != size - length:
        raise InvalidRequestError(
            f"binary tensors: expected {num_binary} bytes as their binary_data_size says, got "
            f"{size - length}"
        )
    pieces: list[Payload] = [plan.head]
    for content in plan.contents:
        if isinstance(content, int):
            pieces += (raw_input_head(content), *unread.take(content))
        else:
            pieces += (raw_input_head(len(content)), content)
    return _joined(pieces, take), plan.wanted


class _Unread:
    """What is left of a body in pieces, to be taken without a copy."""

    def __init__(self, body: Sequence[Message]) -> None:
        self._left = [memoryview(each) for each in reversed(body)]

    def take(self, num_bytes: int) -> list[memoryview]:
        """The next bytes; there are so many."""
        taken = []
        while num_bytes:
            piece = self._left.pop()
            if len(piece) > num_bytes:
                self._left.append(piece[num_bytes:])
                piece = piece[:num_bytes]
            taken.append(piece)
            num_bytes -= len(piece)
        return taken


def _planned(raw: bytes, model: tuple[str, str]) -> _Plan:
    document = document_from_json(raw)
    parameters: Document = optional(document, "parameters", {})
    is_binary = parameters.pop("binary_data_output", False) is True
    try:
        request = pb.ModelInferRequest(
            model_name=model[0], model_version=model[1], id=optional(document, "id", "")
        )
        _set(request.parameters, parameters)
        contents = _add_inputs(request, field(document, "inputs", list))
        asked: list[Any] = optional(document, "outputs", [])
        others = _add_outputs(request, asked, is_binary=is_binary)
        return _Plan(request.SerializeToString(), contents, OutputForms(is_binary, others))
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"a string has no form in UTF-8: {error}") from error


_remembered = lru_cache(NUM_REMEMBERED)(_planned)


def _add_inputs(request: pb.ModelInferRequest, inputs: list[Any]) -> tuple[bytes | int, ...]:
    contents: list[bytes | int] = []
    _check_number("inputs", inputs)
    for number, each in enumerate(inputs):
        try:
            tensor: Document = checked(each, dict, "all of it")
            name = field(tensor, "name", str)
            datatype = field(tensor, "datatype", str)
            shape = _shape(tensor)
            parameters: Document = optional(tensor, "parameters", {})
            size = parameters.pop("binary_data_size", None)
            added = request.inputs.add(name=name, datatype=datatype, shape=shape)
            _set(added.parameters, parameters)
            if size is not None:
                contents.append(_size(size))
            elif _REGION not in parameters:
                contents.append(bytes_from_values(field(tensor, "data", list), datatype, shape))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"input {number}, {error}") from error
    return tuple(contents)


def _check_number(what: str, tensors: list[Any]) -> None:
    if len(tensors) > _MOST_TENSORS:
        raise InvalidRequestError(f"'{what}': expected at most {_MOST_TENSORS}, got {len(tensors)}")


def _shape(tensor: Document) -> list[int]:
    shape: list[Any] = field(tensor, "shape", list)
    if len(shape) > _MOST_DIMS:
        raise InvalidRequestError(
            f"shape: expected at most {_MOST_DIMS} dimensions, got {len(shape)}"
        )
    for dim in shape:
        if type(dim) is not int or dim not in _INT64:
            raise InvalidRequestError(f"shape: expected integers of 64 bits, got {dim!r:.64}")
    return shape


def _size(size: object) -> int:
    if type(size) is not int or size not in _INT64 or size < 0:
        raise InvalidRequestError(f"binary_data_size: expected a size, got {size!r:.64}")
    return size


def _add_outputs(
    request: pb.ModelInferRequest, outputs: list[Any], *, is_binary: bool
) -> frozenset[str]:
    """The names of those that are to be sent in the other way."""
    others = set()
    _check_number("outputs", outputs)
    for number, each in enumerate(outputs):
        try:
            asked: Document = checked(each, dict, "all of it")
            name = field(asked, "name", str)
            parameters: Document = optional(asked, "parameters", {})
            if (parameters.pop("binary_data", is_binary) is True) != is_binary:
                others.add(name)
            _set(request.outputs.add(name=name).parameters, parameters)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"requested output {number}, {error}") from error
    return frozenset(others)


def _set(parameters: Any, given: Document) -> None:
    if len(given) > _MOST_PARAMETERS:
        raise InvalidRequestError(
            f"parameters: expected at most {_MOST_PARAMETERS}, got {len(given)}"
        )
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
                f"parameter '{key}': expected a boolean, string or number of 64 bits"
            )


def _joined(pieces: list[Payload], take: Take | None) -> Payload:
    size = sum(map(len, pieces))
    memory = take(size) if take is not None and size >= _LEAST_TAKEN else None
    if memory is None:
        return b"".join(pieces)
    at = 0
    for piece in pieces:
        memory[at : at + len(piece)] = piece
        at += len(piece)
    return memory
