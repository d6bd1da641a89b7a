"""Bodies of requests: read within the bounds that requests over gRPC have, and decompressed."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import grpc

from services.contracts.errors import InvalidRequestError
from services.gateway.http.answers import HttpStatusError
from services.gateway.http.http_call import HttpCall
from services.grpc_server.limits import SMALL_BYTES
from services.grpc_server.request.decompression import decompressed
from services.grpc_server.request.messages import CompressedMessage, Message, StatusError
from services.grpc_server.server_options import ServerOptions

# Of a body, as they came.
Pieces = list[Message]
_ENCODINGS: Final = ("gzip", "deflate")
_FULL: Final = "incomplete requests use all of the upload memory; retry later"


class Bodies:
    """Reads bodies, which share an account of memory with gRPC's requests."""

    def __init__(self, options: ServerOptions) -> None:
        """Nothing is read; `options` are those of gRPC's port."""
        self._limits = options.limits
        self._memory = options.memory
        self._overload = options.overload

    async def read(self, call: HttpCall, max_bytes: int) -> Pieces:
        """The body, decompressed; what is reserved for it is released when the call ends.

        Raises:
            StatusError: it is too large, in an unknown encoding, or there is no memory for it.
            InvalidRequestError: it is not what its headers say.
        """
        encoding = call.headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity" and encoding not in _ENCODINGS:
            words = f"content-encoding '{encoding[:64]}': expected one of {', '.join(_ENCODINGS)}"
            raise HttpStatusError(415, grpc.StatusCode.UNIMPLEMENTED, words)
        room = min(max_bytes, self._limits.max_decompressed_bytes)
        # One of unknown size reserves all that it may become, as a compressed one does.
        length = int(call.headers.get("content-length", -1))
        is_exact = encoding == "identity" and length >= 0
        most = max_bytes if is_exact else room
        if length > most:
            raise _too_large(length, most)
        reserve = partial(self._reserve, call)
        piece, is_more = await self._next(call)
        if len(piece) > most:
            raise _too_large(len(piece), most)
        pieces: Pieces = [piece]
        if is_more:
            size = length if is_exact else most
            await self._read_rest(call, pieces, most, partial(reserve, size))
        if encoding == "identity":
            return pieces
        packed = CompressedMessage(b"".join(pieces), encoding, room)
        is_reserved = len(packed.body) > SMALL_BYTES
        return [await _unpacked(packed, None if is_reserved else reserve)]

    async def _read_rest(
        self, call: HttpCall, pieces: Pieces, most: int, reserve: Callable[[], Awaitable[None]]
    ) -> None:
        """All of the body: counted while it is small, and reserved from then on."""
        size = len(pieces[0])
        num_counted = size
        self._memory.count(num_counted)
        is_reserved = False
        is_more = True
        try:
            while is_more:
                if self._memory.is_full and not is_reserved:
                    raise self._full()
                piece, is_more = await self._next(call)
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    raise _too_large(size, most)
                if size > SMALL_BYTES and not is_reserved:
                    await reserve()
                    is_reserved = True
                num_more = (0 if is_reserved else size) - num_counted
                self._memory.count(num_more)
                num_counted += num_more
        finally:
            self._memory.count(-num_counted)

    async def _next(self, call: HttpCall) -> tuple[bytes, bool]:
        """The next piece, and whether more follows."""
        event = await call.receive()
        if event["type"] == "http.disconnect":
            raise asyncio.CancelledError
        return event["body"], event["more_body"]

    async def _reserve(self, call: HttpCall, num_bytes: int) -> None:
        """Return once there is memory for so many bytes, until the call ends.

        Raises StatusError where that takes longer than requests may.
        """
        granted = asyncio.Event()
        reservation = self._memory.reserve(num_bytes, granted.set)
        call.on_end.append(partial(self._memory.release, reservation))
        if not reservation.is_granted:
            try:
                async with asyncio.timeout(self._limits.max_request_age_s):
                    await granted.wait()
            except TimeoutError:
                raise self._full() from None

    def _full(self) -> StatusError:
        status = self._overload
        return StatusError(status.code, _FULL, status.trailing, is_overload=True)


def _too_large(num_bytes: int, most: int) -> HttpStatusError:
    return HttpStatusError(
        413,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"a body of {num_bytes} bytes: at most {most} are accepted",
    )


async def _unpacked(
    packed: CompressedMessage, reserve: Callable[[int], Awaitable[None]] | None
) -> Message:
    try:
        return await decompressed(packed, reserve)
    except StatusError as error:
        if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise HttpStatusError(413, error.code, str(error)) from error
        # gRPC has INTERNAL for it; of HTTP it is the client's fault.
        raise InvalidRequestError(str(error)) from error
