"""The receiving side of one call: DATA becomes messages, within flow control and memory."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from services.contracts.transport.large_buffer import LargeBuffer
from services.grpc_server.calls.handler_runner import Requests
from services.grpc_server.calls.servicer_context import ServicerContext
from services.grpc_server.headers.request_headers import Metadatum, RequestHeaders
from services.grpc_server.http2.frames import window_update
from services.grpc_server.http2.send_stream import SendStream
from services.grpc_server.limits import GRANT_BYTES, STREAM_WINDOW
from services.grpc_server.request.messages import (
    PREFIX,
    CompressedMessage,
    Message,
    MessageAssembler,
    StatusError,
)
from services.grpc_server.request.upload import Upload, overload_error

if TYPE_CHECKING:
    # It makes the calls: their modules would import each other.
    from services.grpc_server.http2.streams import Streams

    Handler = grpc.RpcMethodHandler[Any, Any]

_Taken = TypeVar("_Taken")


class ReceiveStream(SendStream, ABC):
    """What a call does with DATA of its request; `Call` is the rest of it."""

    __slots__ = (
        "_arrived",
        "_assembler",
        "_connection",
        "_handler",
        "_max_bytes",
        "_message",
        "_num_held",
        "headers",
        "is_ended",
        "is_ending",
        "is_half_closed",
        "num_missing",
        "upload",
        "window_in",
    )

    def __init__(
        self,
        connection: "Streams",
        stream_id: int,
        headers: RequestHeaders,
        handler: "Handler",
    ) -> None:
        """Nothing was received.

        Args:
            connection: writes frames, and has the options of the server.
            stream_id: HTTP/2's number of the stream.
            headers: of the request.
            handler: what the path of the request calls.

        Attributes:
            is_ended: the call's status is known.
            num_missing: bytes of content-length that were not received; -1 without one.
            is_ending: the DATA frame that comes has END_STREAM.
            is_half_closed: END_STREAM was received.
            upload: of a request of several DATA frames; None of others.
            window_in: flow-control window of the client.
        """
        super().__init__(stream_id, connection.writer.initial_window)
        self.headers = headers
        self.window_in = STREAM_WINDOW
        self.num_missing = headers.content_length
        self.is_half_closed = self.is_ending = self.is_ended = False
        self.upload: Upload | None = None
        self._connection = connection
        self._handler = handler
        self._max_bytes = connection.options.limits.max_request_bytes(headers.path)
        self._message: Message | None = None
        self._assembler: MessageAssembler | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._num_held = 0

    @property
    @abstractmethod
    def context(self) -> ServicerContext:
        """Of its handler."""

    @abstractmethod
    def end(self, code: grpc.StatusCode, details: str, trailing: Sequence[Metadatum] = ()) -> None:
        """End the call with a status; see `Call.end`."""

    @abstractmethod
    def fail(self, fault: StatusError) -> None:
        """End the call with a status that its handler does not see."""

    @abstractmethod
    def _run(self, given: Message | CompressedMessage | Requests) -> None:
        """Run the handler."""

    @property
    def large(self) -> LargeBuffer | None:
        """The buffer of a large message, for the next read; None without one."""
        return self._assembler.large if self._assembler is not None else None

    def has_length(self, num_bytes: int, *, is_last: bool) -> bool:
        """Whether so much more DATA agrees with content-length (RFC 9113, section 8.1.1)."""
        if self.num_missing < 0:
            return True
        self.num_missing -= num_bytes
        return self.num_missing == 0 if is_last else self.num_missing >= 0

    @property
    def is_awaited(self) -> bool:
        """Whether the rest of a message is to come; of a unary call, all of it too."""
        assembler = self._assembler
        if self._handler.request_streaming:
            return assembler is not None and assembler.is_inside
        return True

    def feed(self, piece: memoryview) -> None:
        """Take bytes of DATA; the memory is used again afterwards."""
        if self.is_ended:
            return
        if self._assembler is None:
            # Nearly every request is one message in one DATA frame.
            size = len(piece) - PREFIX.size
            is_one = self._message is None and 0 <= size <= self._max_bytes
            if is_one and PREFIX.unpack_from(piece) == (0, size):
                self._message = bytes(piece[PREFIX.size :])
                # With END_STREAM it goes to its handler at once, and is not worth an entry.
                if not self.is_ending:
                    self.count_held()
                return
        self._read(self._assemble().feed, piece)

    def filled(self, num_bytes: int) -> None:
        """So many bytes were read into `large`."""
        if not self.is_ended and self._assembler is not None:
            self._read(self._assembler.filled, num_bytes)

    def _read(self, take: Callable[[_Taken], None], what: _Taken) -> None:
        try:
            take(what)
        except StatusError as fault:
            self.fail(fault)
        else:
            self.count_held()
            if not self.is_ended:
                self._wake_handler()

    def count_held(self) -> None:
        """Count what is held of the request; end the call if all of them hold too much."""
        num_bytes = 0
        upload = self.upload
        if not self.is_ended:
            num_bytes = self.headers.num_bytes
            if self._message is not None:
                num_bytes += len(self._message)
            if upload is not None:
                num_bytes += upload.num_counted_bytes
        grown = num_bytes - self._num_held
        self._num_held = num_bytes
        if grown:
            options = self._connection.options
            options.memory.count(grown)
            # One that releases memory is not ended for what others hold.
            if grown > 0 and options.memory.is_full:
                self.fail(overload_error(options))

    def data_ended(self) -> None:
        """END_STREAM was received."""
        self.is_half_closed = True
        if self.is_ended:
            return
        assembler = self._assembler
        if self._handler.request_streaming:
            self._wake_handler()
        elif assembler is None and self._message is not None:
            self._run(self._message)
        elif assembler is None or assembler.is_inside or not assembler.num_whole:
            self.end(grpc.StatusCode.INTERNAL, "expected one complete message, got less")
        else:
            message = assembler.take()
            if self.upload is not None:
                # Not before: until END_STREAM the client has to make progress.
                self.upload.note_taken()
            self._run(message)

    def _assemble(self) -> MessageAssembler:
        if self._assembler is None:
            options = self._connection.options
            is_stream = self._handler.request_streaming
            self._assembler = MessageAssembler(
                self._max_bytes,
                self.headers.encoding,
                options.take,
                options.limits.max_decompressed_bytes,
            )
            self.upload = Upload(self, self._assembler, options, is_stream=is_stream)
            if self._message is not None:
                self._assembler.add(self._message)
                self._message = None
        return self._assembler

    def _wake_handler(self) -> None:
        """Wake the handler that waits for a message; end a unary call with a second one."""
        assembler = self._assemble()
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        elif not self._handler.request_streaming and assembler.num_whole + assembler.is_inside > 1:
            # Now: a client that never ends its stream could send any number.
            self.end(grpc.StatusCode.INTERNAL, "expected one complete message, got more")

    def grant_more(self) -> None:
        """Send WINDOW_UPDATE; at most STREAM_WINDOW bytes are not read by the handler."""
        if self.is_half_closed or self.is_ended:
            return
        upload = self.upload
        unread = 0 if upload is None else upload.num_unread_bytes
        missing = STREAM_WINDOW - self.window_in - unread
        # Seldom: each WINDOW_UPDATE is a frame to write, and wakes its client.
        if missing >= GRANT_BYTES and (upload is None or upload.may_grow()):
            self.window_in += missing
            self._connection.writer.control(window_update(self.stream_id, missing))

    async def next_message(self) -> Message:
        """The next message of a stream.

        Raises:
            StopAsyncIteration: the client has ended its stream, or the call has ended.
            StatusError: the last message is incomplete, or this one cannot be decompressed.
        """
        if self.is_ended:
            raise StopAsyncIteration
        assembler = self._assemble()
        upload = self.upload
        assert upload is not None
        # A handler that asks for the next message is done with the one before.
        upload.release_taken()
        if upload.note_reading():
            self.grant_more()
        # Any bytes wake it: the message need not be complete yet.
        while not assembler.num_whole:
            if self.is_half_closed:
                if assembler.is_inside:
                    raise StatusError(grpc.StatusCode.INTERNAL, "the last message is incomplete")
                raise StopAsyncIteration
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        message = assembler.take()
        upload.note_taken()
        if isinstance(message, CompressedMessage):
            message = await upload.decompressed(message)
        self.grant_more()
        return message
