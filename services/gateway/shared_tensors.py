"""A station for requests whose tensors lie in shared memory: replicas see raw contents alone."""

from collections.abc import Mapping, MutableMapping
from contextlib import ExitStack
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from services.contracts.errors import InvalidRequestError
from services.contracts.protobuf_wire import LENGTH_DELIMITED, varint_bytes
from services.contracts.request_limits import check_request_head
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

    async def answer(self, call: InferenceCall) -> bytes:
        """The answer, without the outputs that were put into shared memory; raises as within.

        Raises:
            InvalidRequestError: a region, a span or a combination is wrong.
            NotFoundError: no such region.
        """
        if _MARK not in call.body:
            return await self._inner.answer(call)
        check_request_head(call.body)
        try:
            request = pb.ModelInferRequest.FromString(call.body)
        except DecodeError:
            return await self._inner.answer(call)  # which says so in due words
        with ExitStack() as held:
            targets = self._targets(request, held)
            call.body = self._filled(request, held)
            answer = await self._inner.answer(call)
            return _placed(answer, targets) if targets else answer

    def _filled(self, request: pb.ModelInferRequest, held: ExitStack) -> bytes:
        """The request with raw contents for inputs that lie in shared memory too."""
        places = [
            self._taken_place(t.parameters, f"input '{t.name}'", held) for t in request.inputs
        ]
        if not any(places):
            return request.SerializeToString()
        num_bytes = sum(place.byte_size for place in places if place)
        if num_bytes + request.ByteSize() > self._max_message_bytes:
            raise InvalidRequestError(
                f"request of {num_bytes} bytes in shared memory: at most "
                f"{self._max_message_bytes} bytes are taken; send less at once"
            )
        _check_contents(request, places)
        # In the clients' numbering, tensors in shared memory have no entry.
        raw = iter(tuple(request.raw_input_contents))
        del request.raw_input_contents[:]
        pieces = [request.SerializeToString()]
        for place in places:
            data = place.region.read(place.offset, place.byte_size) if place else next(raw)
            pieces += (_RAW_INPUT_TAG, varint_bytes(len(data)), data)
        return b"".join(pieces)

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


def _check_contents(request: pb.ModelInferRequest, places: list[_Place | None]) -> None:
    for tensor in request.inputs:
        if tensor.HasField("contents"):
            raise InvalidRequestError(
                f"input '{tensor.name}' for model '{request.model_name}': contents cannot be "
                "given beside shared memory; use raw_input_contents"
            )
    num_wanted, num_found = places.count(None), len(request.raw_input_contents)
    if num_wanted != num_found:
        raise InvalidRequestError(
            f"expected {num_wanted} raw_input_contents, one for each input that is not in shared "
            f"memory, for model '{request.model_name}', got {num_found}"
        )


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
            if len(data) > place.byte_size:
                raise InvalidRequestError(
                    f"shared memory size specified with the request for output '{output.name}' "
                    f"({place.byte_size} bytes) should be at least {len(data)} bytes to hold the "
                    "results"
                )
            place.region.write(place.offset, data)
            response.raw_output_contents[number] = b""
            output.parameters[_REGION].string_param = place.region.name
            output.parameters[_BYTE_SIZE].int64_param = len(data)
            if place.offset:
                output.parameters[_OFFSET].int64_param = place.offset
    return response.SerializeToString()
