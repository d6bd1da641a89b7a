"""A station for requests whose tensors lie in shared memory: replicas see raw contents alone."""

from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from services.contracts.errors import InvalidRequestError
from services.contracts.frames import Payload
from services.contracts.protobuf_wire import LENGTH_DELIMITED, varint_bytes
from services.contracts.request_limits import check_output_room, check_request_head
from services.contracts.tensors import bytes_from_array
from services.contracts.typed_contents import array_from_contents
from services.gateway.inference import InferenceCall, Station
from services.gateway.shared_memory import Region, SharedMemoryRegions
from services.pb import open_inference_v2_pb2 as pb

_REGION: Final = "shared_memory_region"
_BYTE_SIZE: Final = "shared_memory_byte_size"
_OFFSET: Final = "shared_memory_offset"
# Bytes that no request without shared memory is likely to have.
_MARK: Final = _REGION.encode()
# Joined by hand: each way through a message would be one more copy.
_RAW_INPUT_TAG: Final = bytes([7 << 3 | LENGTH_DELIMITED])
_Parameters = MutableMapping[str, pb.InferParameter]


class _Place(NamedTuple):
    """Where a tensor lies."""

    region: Region
    offset: int
    byte_size: int


class SharedMemoryInference:
    """Puts inputs out of shared memory into requests, and outputs of answers into it."""

    def __init__(
        self, inner: Station, regions: SharedMemoryRegions, max_message_bytes: int
    ) -> None:
        """`max_message_bytes` bounds what a request may be with its inputs in it."""
        self._inner, self._regions = inner, regions
        self._max_message_bytes = max_message_bytes

    async def answer(self, call: InferenceCall) -> Payload:
        """The answer, without the outputs that were put into shared memory; raises as within.

        Raises:
            InvalidRequestError: a region, a span or a combination is wrong.
            NotFoundError: no such region.
        """
        body = bytes(call.body)
        if _MARK not in body:
            return await self._inner.answer(call)
        check_request_head(body)
        try:
            request = pb.ModelInferRequest.FromString(body)
        except DecodeError:
            return await self._inner.answer(call)  # which says so in due words
        with ExitStack() as held:
            targets = self._targets(request, held)
            call.body = self._filled(request, held)
            answer = await self._inner.answer(call)
            return _placed(bytes(answer), targets) if targets else answer

    def _filled(self, request: pb.ModelInferRequest, held: ExitStack) -> bytes:
        """The request with raw contents for inputs that lie in shared memory too."""
        places = [
            self._taken_place(t.parameters, f"input '{t.name}'", held) for t in request.inputs
        ]
        if not any(places):
            return request.SerializeToString()
        beside = _contents_beside(request, places)
        pieces = [request.SerializeToString()]
        self._check_size(places, sum(map(len, (pieces[0], *beside))))
        raw = iter(beside)
        for place in places:
            data = place.region.read(place.offset, place.byte_size) if place else next(raw)
            pieces += (_RAW_INPUT_TAG, varint_bytes(len(data)), data)
        return b"".join(pieces)

    def _check_size(self, places: Sequence[_Place | None], num_beside: int) -> None:
        """Refuse what is too much before it is read; `num_beside` bytes are in the message."""
        num_bytes = sum(place.byte_size for place in places if place)
        if num_bytes + num_beside > self._max_message_bytes:
            raise InvalidRequestError(
                f"request of {num_bytes} bytes in shared memory: at most "
                f"{self._max_message_bytes} bytes are taken; send less at once"
            )

    def _targets(self, request: pb.ModelInferRequest, held: ExitStack) -> dict[str, _Place]:
        targets = {}
        for output in request.outputs:
            is_classified = "classification" in output.parameters
            place = self._taken_place(output.parameters, f"output '{output.name}'", held)
            if place and is_classified:
                raise InvalidRequestError(
                    f"output '{output.name}' for model '{request.model_name}': 'classification' "
                    f"can't be set with '{_REGION}'"
                )
            if place:
                targets[output.name] = place
                # The replica refuses what is larger, and counts it as the failure that it is.
                output.parameters[_BYTE_SIZE].int64_param = place.byte_size
        return targets

    def _taken_place(self, parameters: _Parameters, what: str, held: ExitStack) -> _Place | None:
        """Take the parameters that say a place out of a tensor's."""
        if _REGION not in parameters:
            return None
        name = _value(parameters, _REGION, "string_param", what)
        byte_size = _value(parameters, _BYTE_SIZE, "int64_param", what)
        offset = _value(parameters, _OFFSET, "int64_param", what) if _OFFSET in parameters else 0
        for key in (_REGION, _BYTE_SIZE, _OFFSET):
            parameters.pop(key, None)
        region = held.enter_context(self._regions.region(str(name)).held())
        region.check_span(int(offset), int(byte_size))
        return _Place(region, int(offset), int(byte_size))


def _contents_beside(
    request: pb.ModelInferRequest, places: Sequence[_Place | None]
) -> Sequence[bytes]:
    """Take what the message itself brings out of it, as bytes, for each input without a place.

    As in Triton: raw contents have no entry for inputs in shared memory, and no request has
    raw contents and typed ones.
    """
    model = request.model_name
    for tensor, place in zip(request.inputs, places, strict=True):
        if place and tensor.HasField("contents"):
            raise InvalidRequestError(
                f"unexpected contents of input '{tensor.name}' for model '{model}': it lies in "
                "shared memory; send one of both"
            )
    beside = [tensor for tensor, place in zip(request.inputs, places, strict=True) if not place]
    raw = tuple(request.raw_input_contents)
    if not raw and any(tensor.HasField("contents") for tensor in beside):
        raw = tuple([_raw_from_contents(tensor, model) for tensor in beside])
    elif mixed := [tensor.name for tensor in beside if tensor.HasField("contents")]:
        raise InvalidRequestError(
            "contents field must not be specified when using raw_input_contents for "
            f"'{mixed[0]}' for model '{model}'"
        )
    elif len(beside) != len(raw):
        raise InvalidRequestError(
            f"expected {len(beside)} raw_input_contents, one for each input that is not in shared "
            f"memory, for model '{model}', got {len(raw)}"
        )
    del request.raw_input_contents[:]
    return raw


def _raw_from_contents(tensor: pb.ModelInferRequest.InferInputTensor, model: str) -> bytes:
    if not tensor.HasField("contents"):
        raise InvalidRequestError(
            f"unable to find data for input tensor '{tensor.name}' for model '{model}' in request"
        )
    data = bytes_from_array(array_from_contents(tensor, model))
    tensor.ClearField("contents")
    return data


def _value(
    parameters: Mapping[str, pb.InferParameter], key: str, wanted: str, what: str
) -> str | int:
    found = parameters[key].WhichOneof("parameter_choice") if key in parameters else "nothing"
    if found != wanted:
        raise InvalidRequestError(f"parameter '{key}' of {what}: expected {wanted}, got {found}")
    value: str | int = getattr(parameters[key], wanted)
    return value


def _placed(answer: bytes, targets: Mapping[str, _Place]) -> bytes:
    """The answer with an empty entry for each output that lies in shared memory now."""
    response = pb.ModelInferResponse.FromString(answer)
    for number, output in enumerate(response.outputs):
        if place := targets.get(output.name):
            data = response.raw_output_contents[number]
            check_output_room(output.name, len(data), place.byte_size)
            place.region.write(place.offset, data)
            response.raw_output_contents[number] = b""
            output.parameters[_REGION].string_param = place.region.name
            output.parameters[_BYTE_SIZE].int64_param = len(data)
            if place.offset:
                output.parameters[_OFFSET].int64_param = place.offset
    return response.SerializeToString()
