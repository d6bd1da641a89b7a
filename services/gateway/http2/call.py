"""One call: its messages in, its handler, its answer."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import grpc

from services.contracts.large_buffer import LargeBuffer
from services.gateway.http2.call_start import CallStart, Metadatum
from services.gateway.http2.context import AbortError
from services.gateway.http2.frames import window_update
from services.gateway.http2.header_blocks import refusal_block, trailers_block
from services.gateway.http2.limits import GRANT_BYTES, STREAM_WINDOW
from services.gateway.http2.messages import (
    PREFIX,
    Message,
    MessageAssembler,
    MessageFault,
    Packed,
)
from services.gateway.http2.owner import Owner
from services.gateway.http2.sender import Outlet
from services.gateway.http2.serving import Requests, serve
from services.gateway.http2.terms import Unhandled
from services.gateway.http2.upload import Upload

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

# Loops count in milliseconds, and wake up to one and a half too early: a handler that is told
# that it is late shall find no time left.
_EARLY_S: Final = 0.002
_Taken = TypeVar("_Taken")


class Call(Outlet):
    """A call from its first frame to its last; also the handler's context of it."""

    __slots__ = ("_arrived", "_assembler", "_began_s", "_deadline_s", "_handler", "_has_begun",
                 "_is_ended", "_is_overload", "_max_bytes", "_message", "_owner", "_task", "_timer",
                 "is_half_closed", "is_handled", "start", "upload", "window_in")  # fmt: skip

    def __init__(self, owner: Owner, stream_id: int, start: CallStart, handler: "Handler") -> None:
        """Nothing runs before `begin`.

        Attributes:
            is_half_closed: the client has sent all that it will.
            is_handled: the handler has begun, and knows how the call ends.
            upload: of a request that comes in parts; None of others.
            window_in: bytes that the client may send.
        """
        super().__init__(stream_id, owner.sender.initial_window)
        self.start, self.window_in = start, STREAM_WINDOW
        self.is_half_closed = self.is_handled = False
        self.upload: Upload | None = None
        self._began_s = time.monotonic()
        self._max_bytes = owner.terms.limits.max_request_bytes(start.path)
        self._owner, self._handler = owner, handler
        self._message: Message | None = None
        self._assembler: MessageAssembler | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._has_begun = self._is_ended = self._is_overload = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s: float | None = None

    def begin(self) -> None:
        """The call exists; a handler that reads a stream starts at once."""
        timeout_s = self.start.timeout_s
        if timeout_s is not None:
            self._deadline_s = self._began_s + timeout_s
            self._timer = asyncio.get_running_loop().call_later(timeout_s + _EARLY_S, self._expire)
        if self._handler.request_streaming:
            self._assemble()
            self._run(Requests(self, self._handler.request_deserializer))

    @property
    def is_given_up(self) -> bool:
        """Whether the client no longer waits; nearly is enough, as it says more than it means."""
        timeout_s, left_s = self.start.timeout_s, self.time_remaining()
        return timeout_s is not None and left_s is not None and left_s <= timeout_s / 10

    # ---- the handler's context, see `context.Context`

    def peer(self) -> str:
        """Who calls."""
        return self._owner.peer

    def invocation_metadata(self) -> Sequence[Metadatum]:
        """What the client sent beside its request."""
        return self.start.metadata

    def time_remaining(self) -> float | None:
        """Seconds the client still waits; None when it set no deadline."""
        if self._deadline_s is None:
            return None
        return max(self._deadline_s - time.monotonic(), 0.0)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[Metadatum] = ()
    ) -> NoReturn:
        """End the call with a status."""
        raise AbortError(code, details, trailing_metadata)

    def hold(self) -> Callable[[], None] | None:
        """Keep the room of the message that was taken last, until what this returns is called."""
        return self.upload.hold() if self.upload is not None else None

    # ---- what comes in

    @property
    def large(self) -> LargeBuffer | None:
        """A buffer that next bytes may be read into."""
        return self._assembler.large if self._assembler is not None else None

    def feed(self, piece: memoryview) -> None:
        """Some bytes came."""
        if self._is_ended:
            return
        if self._assembler is None:
            # Nearly every request is one message in one frame.
            size = len(piece) - PREFIX.size
            is_one = self._message is None and 0 <= size <= self._max_bytes
            if is_one and PREFIX.unpack_from(piece) == (0, size):
                self._message = bytes(piece[PREFIX.size :])
                return
        self._read(self._assemble().feed, piece)

    def filled(self, num_bytes: int) -> None:
        """So many bytes were read into the room of `large`."""
        if not self._is_ended and self._assembler is not None:
            self._read(self._assembler.filled, num_bytes)

    def _read(self, take: Callable[[_Taken], None], what: _Taken) -> None:
        try:
            take(what)
        except MessageFault as fault:
            self.fail(fault)
        else:
            self._note_arrival()

    def data_ended(self) -> None:
        """The client has sent all that it will."""
        self.is_half_closed = True
        if self._is_ended:
            return
        assembler = self._assembler
        if self._handler.request_streaming:
            self._note_arrival()
        elif assembler is None and self._message is not None:
            self._run(self._message)
        elif assembler is None or assembler.is_inside or not assembler.num_whole:
            self.end(grpc.StatusCode.INTERNAL, "expected one whole message, got less")
        else:
            if self.upload is not None:
                # Not before: a client that has not ended it could have us wait for that.
                self.upload.note_taken()
            self._run(assembler.take())

    def _assemble(self) -> MessageAssembler:
        if self._assembler is None:
            terms, is_stream = self._owner.terms, self._handler.request_streaming
            self._assembler = MessageAssembler(
                self._max_bytes,
                self.start.encoding,
                terms.take,
                terms.limits.max_decompressed_bytes,
            )
            self.upload = Upload(self, self._assembler, terms, is_stream=is_stream)
            if self._message is not None:
                self._assembler.add(self._message)
                self._message = None
        return self._assembler

    def _note_arrival(self) -> None:
        """Wake the handler that waits for a message; one that takes a single one gets no more."""
        assembler = self._assemble()
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        elif not self._handler.request_streaming and assembler.num_whole + assembler.is_inside > 1:
            # Now: a client that never ends would have us keep all that it sends.
            self.end(grpc.StatusCode.INTERNAL, "expected one whole message, got more")

    def grant_more(self) -> None:
        """Let the client send more; no more than STREAM_WINDOW lies unread by the handler."""
        if self.is_half_closed or self._is_ended:
            return
        upload = self.upload
        unread = 0 if upload is None else upload.num_unread_bytes
        missing = STREAM_WINDOW - self.window_in - unread
        if missing >= GRANT_BYTES and (upload is None or upload.may_grow(missing)):
            self.window_in += missing
            self._owner.sender.control(window_update(self.stream_id, missing))

    async def next_message(self) -> Message:
        """The next message of a stream.

        Raises:
            StopAsyncIteration: the client has sent all that it will, or the call has ended.
            MessageFault: the last message is cut off, or this one cannot be unpacked.
        """
        if self._is_ended:
            raise StopAsyncIteration
        assembler, upload = self._assemble(), self.upload
        assert upload is not None
        upload.leave_taken()
        if upload.note_reading():
            self.grant_more()
        while not assembler.num_whole:
            if self.is_half_closed:
                if assembler.is_inside:
                    raise MessageFault(grpc.StatusCode.INTERNAL, "the last message is cut off")
                raise StopAsyncIteration
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        message = assembler.take()
        upload.note_taken()
        if isinstance(message, Packed):
            message = await upload.unpacked(message)
        self.grant_more()
        return message

    # ---- what goes out

    def answer(self, message: Message) -> None:
        """Send the one message of a call that went well, and end it; raises as `send`."""
        if self._is_ended:
            return
        self._check_size(message)
        self._settle()
        self._owner.sender.answer(self, message)

    async def send(self, message: Message) -> None:
        """Send one message of several; returns once there is room for the next.

        Raises:
            MessageFault: it is too large.
        """
        if self._is_ended:
            return
        self._check_size(message)
        self._owner.pay_answer()
        self._begin_answer()
        self._owner.sender.add(self, message)
        if self.num_pending:
            await self._owner.sender.drained(self)

    def finish(self) -> None:
        """End a call that went well."""
        if not self._is_ended:
            self._begin_answer()
            self._settle()
            self._owner.sender.finish(self, trailers_block(grpc.StatusCode.OK))

    def end(self, code: grpc.StatusCode, details: str, trailing: Sequence[Metadatum] = ()) -> None:
        """End the call with a status behind what was answered; after the end nothing."""
        if self._is_ended:
            return
        self._settle()
        self._note_end(code)
        self._stop_handler()
        if self._has_begun:
            block = trailers_block(code, details, trailing)
        else:
            block = refusal_block(code, details, trailing)
        self._owner.sender.finish(self, block)

    def fail(self, fault: MessageFault) -> None:
        """End the call otherwise than its handler says or will say."""
        if not self._is_ended:
            self.is_handled, self._is_overload = False, fault.is_overload
            self.end(fault.code, str(fault), fault.trailing)

    def sent(self) -> None:
        """The last frame is written."""
        self._close()

    def reset(self) -> None:
        """The stream is gone: nothing more can be sent."""
        if not self._is_ended:
            self._settle()
            self._note_end(grpc.StatusCode.CANCELLED)
        self._stop_handler()
        self._owner.sender.discard(self)
        self._close()

    def _begin_answer(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._owner.sender.begin(self)

    def _settle(self) -> None:
        self._is_ended = True
        if self.upload is not None:
            self.upload.close()
            # What is over keeps no memory, though its client takes the end of it late or never.
            self._assembler = self.upload = None
            self._owner.stop_reading(self)

    def _note_end(self, code: grpc.StatusCode) -> None:
        if not self.is_handled:
            start, duration_s = self.start, time.monotonic() - self._began_s
            self._owner.terms.on_unhandled(
                Unhandled(start.path, self._owner.peer, start.metadata, code,
                          duration_s, self._is_overload)
            )  # fmt: skip

    def _check_size(self, message: Message) -> None:
        # Raises for what is no bytes, while the call can still be told of it.
        size, most = memoryview(message).nbytes, self._owner.terms.limits.max_message_bytes
        if size > most:
            # Raised: the handler shall end with its call.
            raise MessageFault(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the answer has {size} bytes: at most {most} are sent",
            )

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._message = self._task = None
        self._owner.forget(self)

    # ---- the handler

    def _run(self, given: Message | Packed | Requests) -> None:
        self._message = None
        serving = serve(self, self._handler, given)
        self._task = asyncio.get_running_loop().create_task(serving)

    def _stop_handler(self) -> None:
        task = self._task
        # A handler that ends its call itself goes on to its own end.
        if task is not None and not task.done() and task is not asyncio.current_task():
            task.cancel()
            self._owner.leave(task)
            # It keeps its error, whose traceback holds the request and this call.
            self._task = None

    def _expire(self) -> None:
        self._timer = None
        if self._is_ended:
            # It is answered, and the client does not take the answer.
            self._owner.cut(self)
            return
        self._owner.sender.discard(self)
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
