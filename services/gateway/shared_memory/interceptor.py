"""Intercepts requests whose tensors lie in shared memory: replicas see raw contents alone."""

import asyncio
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.request_limits import check_output_room, check_request_head
from services.contracts.kserve.request_wire import (
    id_field,
    join_response,
    raw_input_head,
    split_request,
    split_response,
)
from services.contracts.kserve.tensors import bytes_from_array
from services.contracts.kserve.typed_contents import array_from_contents
from services.contracts.transport.frames import Payload
from services.contracts.transport.large_buffer import unset_memory
from services.gateway.pipeline.inference import InferenceCall, InferenceHandler
from services.gateway.shared_memory.regions import Region, SharedMemoryRegions
from services.pb import open_inference_v2_pb2 as pb

_REGION: Final = "shared_memory_region"
_BYTE_SIZE: Final = "shared_memory_byte_size"
_OFFSET: Final = "shared_memory_offset"
# Bytes that no request without shared memory is likely to have.
_MARK: Final = _REGION.encode()
# Moving more takes a millisecond and longer, for which other requests would wait.
_MAX_ON_LOOP_BYTES: Final = 1 << 20
_Parameters = MutableMapping[str, pb.InferParameter]
_T = TypeVar("_T")


class _Place(NamedTuple):
    """Where a tensor lies."""

    region: Region
    offset: int
    byte_size: int


# Of a request that is put together.
_Piece = bytes | memoryview | _Place


@dataclass(frozen=True)
class SharedMemoryInference:
    """Puts inputs out of shared memory into requests, and outputs of answers into it.

    Attributes:
        inner: answers requests whose inputs are in them.
        regions: that clients have registered.
        max_message_bytes: bounds what a request may be with its inputs in it.
    """

    inner: InferenceHandler
    regions: SharedMemoryRegions
    max_message_bytes: int

    async def answer(self, call: InferenceCall) -> Payload:
        """The answer, without the outputs that were put into shared memory; raises as within.

        Raises:
            InvalidRequestError: a region, a span or a combination is wrong.
            NotFoundError: no such region.
        """
        head, request_id, raw_contents = split_request(call.body)
        if _MARK not in head:
            return await self.inner.answer(call)
        check_request_head(head)
        try:
            request = pb.ModelInferRequest.FromString(head)
        except DecodeError:
            return await self.inner.answer(call)  # which raises the fitting error
        with ExitStack() as held:
            targets = self._targets(request, held)
            pieces = self._pieces(request, raw_contents, held)
            pieces.insert(1, id_field(request_id))
            call.body = await _moved(partial(_filled, pieces), sum(map(_size_of, pieces)), held)
            del pieces, raw_contents
            answer = await self.inner.answer(call)
            if not targets:
                return answer
            return await _moved(partial(_placed, answer, targets), len(answer), held)

    def _pieces(
        self, request: pb.ModelInferRequest, raw_contents: Sequence[memoryview], held: ExitStack
    ) -> list[_Piece]:
        """The request with raw contents for inputs that lie in shared memory too, in pieces."""
        places = [
            self._taken_place(t.parameters, f"input '{t.name}'", held) for t in request.inputs
        ]
        data: Sequence[_Piece] = raw_contents
        if any(places):
            beside = iter(_contents_beside(request, places, raw_contents))
            data = [place or next(beside) for place in places]
        pieces: list[_Piece] = [request.SerializeToString()]
        for each in data:
            pieces += (raw_input_head(_size_of(each)), each)
        self._check_size(places, sum(map(_size_of, pieces)))
        return pieces

    def _check_size(self, places: Sequence[_Place | None], num_all: int) -> None:
        """Refuse what is too much before it is read; the request becomes `num_all` bytes."""
        num_bytes = sum(place.byte_size for place in places if place)
        if num_bytes and num_all > self.max_message_bytes:
            raise InvalidRequestError(
                f"request of {num_bytes} bytes in shared memory: at most "
                f"{self.max_message_bytes} bytes are accepted; send less at once"
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
        """Remove the parameters of a shared memory region from a tensor's."""
        if _REGION not in parameters:
            return None
        name = _value(parameters, _REGION, "string_param", what)
        byte_size = _value(parameters, _BYTE_SIZE, "int64_param", what)
        offset = _value(parameters, _OFFSET, "int64_param", what) if _OFFSET in parameters else 0
        for key in (_REGION, _BYTE_SIZE, _OFFSET):
            parameters.pop(key, None)
        region = held.enter_context(self.regions.region(str(name)).held())
        region.check_span(int(offset), int(byte_size))
        return _Place(region, int(offset), int(byte_size))


def _size_of(piece: _Piece) -> int:
    return piece.byte_size if isinstance(piece, _Place) else len(piece)


def _filled(pieces: Sequence[_Piece]) -> memoryview:
    """The pieces as one, with what lies in shared memory read into its place."""
    body = unset_memory(sum(map(_size_of, pieces)))
    room = body
    for piece in pieces:
        size = _size_of(piece)
        if isinstance(piece, _Place):
            piece.region.read_into(room[:size], piece.offset)
        else:
            room[:size] = piece
        room = room[size:]
    return body


async def _moved(move: Callable[[], _T], num_bytes: int, held: ExitStack) -> _T:
    """The result of moving so many bytes; many are moved by a thread, as other requests wait.

    The regions that are held stay so until that has ended, also when the request is cancelled.
    """
    if num_bytes <= _MAX_ON_LOOP_BYTES:
        return move()
    moving = asyncio.ensure_future(asyncio.to_thread(move))
    try:
        return await asyncio.shield(moving)
    except asyncio.CancelledError:
        kept = held.pop_all()

        def release(done: asyncio.Future[_T]) -> None:
            kept.close()
            if not done.cancelled():
                done.exception()  # it is never awaited

        moving.add_done_callback(release)
        raise
    finally:
        # Its error's traceback holds this frame: a cycle would keep the request's memory.
        del moving


def _contents_beside(
    request: pb.ModelInferRequest,
    places: Sequence[_Place | None],
    raw: Sequence[bytes | memoryview],
) -> Sequence[bytes | memoryview]:
    """What the message itself brings, as bytes, for each input without a place.

    As in Triton: raw contents have no entry for inputs in shared memory, and no request has
    raw contents and typed ones.
    """
    model = request.model_name
    for tensor, place in zip(request.inputs, places, strict=True):
        if place and tensor.HasField("contents"):
            raise InvalidRequestError(
                f"unexpected contents of input '{tensor.name}' for model '{model}': it is in "
                "shared memory; send only one of the two"
            )
    beside = [tensor for tensor, place in zip(request.inputs, places, strict=True) if not place]
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


def _placed(answer: Payload, targets: Mapping[str, _Place]) -> bytes:
    """The answer with an empty entry for each output that lies in shared memory now."""
    head, request_id, raw_contents = split_response(answer)
    response = pb.ModelInferResponse.FromString(head)
    for number, output in enumerate(response.outputs):
        if place := targets.get(output.name):
            data = raw_contents[number]
            check_output_room(output.name, len(data), place.byte_size)
            place.region.write(place.offset, data)
            raw_contents[number] = memoryview(b"")
            output.parameters[_REGION].string_param = place.region.name
            output.parameters[_BYTE_SIZE].int64_param = len(data)
            if place.offset:
                output.parameters[_OFFSET].int64_param = place.offset
    return join_response(response.SerializeToString(), request_id, raw_contents)
