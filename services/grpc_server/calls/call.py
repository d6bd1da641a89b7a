"""One call: deadline, handler, answer and end."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import grpc

from services.grpc_server.calls.handler_runner import Requests, run_handler
from services.grpc_server.calls.servicer_context import ServicerContext
from services.grpc_server.headers.request_headers import Metadatum
from services.grpc_server.headers.response_headers import trailers_block, trailers_only_block
from services.grpc_server.request.messages import CompressedMessage, Message, StatusError
from services.grpc_server.request.receive_stream import ReceiveStream
from services.grpc_server.request.upload import SLOW_REQUEST, overload_error
from services.grpc_server.server_options import UnhandledCall

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

# Event loops count in milliseconds, and timers run up to one and a half early: a call that ends
# with DEADLINE_EXCEEDED shall have no time left.
_EARLY_S: Final = 0.002
UNREAD: Final = "unread response bytes exceed the limit, and this connection reads the slowest"


class Call(ReceiveStream):
    """A call, from its first frame to its last; nothing of it may be used before `begin`.

    Attributes:
        is_cancelled: it ended before its handler did.
        is_handled: the handler runs, and sees how the call ends.
        on_end: callbacks of the end.
    """

    __slots__ = (
        "_began_s",
        "_context",
        "_deadline_s",
        "_has_begun",
        "_is_overload",
        "_seen_window",
        "_task",
        "_timer",
        "is_cancelled",
        "is_handled",
        "on_end",
    )

    def begin(self) -> None:
        """Start the deadline, and a handler that reads a stream."""
        self.is_cancelled = self.is_handled = False
        self.on_end: list[Callable[[], None]] | None = None
        self._began_s = time.monotonic()
        self._has_begun = self._is_overload = False
        self._seen_window = -1
        self._context: ServicerContext | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s: float | None = None
        timeout_s = self.headers.timeout_s
        if timeout_s is not None:
            self._deadline_s = self._began_s + timeout_s
            self._timer = asyncio.get_running_loop().call_later(timeout_s + _EARLY_S, self._expire)
        # 0 where other calls share the metadata: then nothing is counted of this one.
        if self.headers.num_bytes:
            self.count_held()
        if self._handler.request_streaming and not self.is_ended:
            self._assemble()
            self._run(self.requests)

    @property
    def is_nearly_expired(self) -> bool:
        """Whether nearly all of the deadline is used: clients reset streams a little early."""
        timeout_s = self.headers.timeout_s
        left_s = self.time_remaining()
        return timeout_s is not None and left_s is not None and left_s <= timeout_s / 10

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None without one."""
        if self._deadline_s is None:
            return None
        return max(self._deadline_s - time.monotonic(), 0.0)

    @property
    def peer(self) -> str:
        """The client's address, as gRPC writes it."""
        return self._connection.peer

    @property
    def context(self) -> ServicerContext:
        """The handler's."""
        if self._context is None:
            self._context = ServicerContext(self)
        return self._context

    @property
    def requests(self) -> Requests:
        """The messages of a request stream."""
        return Requests(self, self._handler.request_deserializer)

    def serialized(self, answer: Any) -> Message:
        """A handler's answer, serialized."""
        serializer = self._handler.response_serializer
        message: Message = answer if serializer is None else serializer(answer)
        return message

    def check_progress(self) -> None:
        """End the call if its request does not come; runs every `Limits.check_interval_s`."""
        if self.is_ended:
            return
        limits = self._connection.options.limits
        memory = self._connection.options.memory
        most_s = limits.max_request_age_s
        is_stream = self._handler.request_streaming
        seen = self._seen_window
        self._seen_window = self.window_in
        is_awaited = self.is_awaited and not self.is_half_closed
        why = self.upload.overload() if self.upload is not None else ""
        # Of unary requests alone: a stream may last, as long as it releases what it holds.
        if is_awaited and not is_stream and time.monotonic() - self._began_s > most_s:
            details = f"the request was not complete within {most_s:g} s"
            self.fail(StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, details))
        elif is_awaited and memory.is_scarce and seen == self.window_in:
            self.fail(overload_error(self._connection.options, SLOW_REQUEST))
        elif why:
            self.fail(overload_error(self._connection.options, why))

    # ---- the answer

    def answer(self, message: Message) -> None:
        """Send the message of a unary call that succeeded, and end it; raises as `send`."""
        if self.is_ended:
            return
        self._check_size(message)
        if self._has_begun or (self._context is not None and not self._context.is_plain):
            self.begin_answer()
            self._connection.writer.add(self, message)
            self.finish()
            return
        # First: where flow control allows, the writer closes the stream before it returns.
        self._settle()
        self._connection.writer.answer(self, message)

    async def send(self, message: Message) -> None:
        """Send a message of a stream; returns once flow control allows the next.

        Raises:
            StatusError: it is too large.
        """
        if self.is_ended:
            return
        self._check_size(message)
        self._connection.pay_answer()
        self.begin_answer()
        self._connection.writer.add(self, message)
        if self.num_pending:
            await self.drained()

    def hold_answer(self, num_bytes: int) -> bool:
        """So many bytes more of answers wait for the client in the handler, or fewer.

        False where so many more may not wait.
        """
        writer = self._connection.writer
        is_admitted = num_bytes <= 0 or writer.admits(num_bytes)
        if is_admitted:
            writer.hold(num_bytes)
        return is_admitted

    def finish(self) -> None:
        """End a call whose handler has returned, with the status that it has set."""
        context = self.context
        code = context.code() or grpc.StatusCode.OK
        if code is not grpc.StatusCode.OK:
            self.end(code, context.details(), context.trailing_metadata())
        elif not self.is_ended:
            self.begin_answer()
            self._settle()
            block = trailers_block(code, context.details(), context.trailing_metadata())
            self._connection.writer.finish(self, block)

    def end(self, code: grpc.StatusCode, details: str, trailing: Sequence[Metadatum] = ()) -> None:
        """End the call with a status, behind the messages that were sent.

        Does nothing when the call has ended.

        Args:
            code: OK too.
            details: for `grpc-message`; may be empty.
            trailing: metadata of the trailers.
        """
        if self.is_ended:
            return
        self._settle()
        self._note_end(code)
        self._stop_handler()
        if self._has_begun:
            block = trailers_block(code, details, trailing)
        else:
            block = trailers_only_block(code, details, trailing)
        self._connection.writer.finish(self, block)

    def fail(self, fault: StatusError) -> None:
        """End the call with a status that its handler does not see."""
        if not self.is_ended:
            self.is_handled = False
            self._is_overload = fault.is_overload
            self.end(fault.code, str(fault), fault.trailing)

    def sent(self) -> None:
        """The last frame of the stream is written."""
        self._close()

    def reset(self) -> None:
        """The stream was reset, or the connection is lost."""
        if not self.is_ended:
            self._settle()
            self.is_cancelled = True
            self._note_end(grpc.StatusCode.CANCELLED)
        self._stop_handler()
        self._connection.writer.discard(self)
        self._close()

    def begin_answer(self, metadata: Sequence[Metadatum] = ()) -> None:
        """Send response headers, once; raises RuntimeError for metadata afterwards."""
        if self._has_begun and metadata:
            raise RuntimeError("initial metadata was sent, or a message, before this")
        if not self._has_begun and not self.is_ended:
            self._has_begun = True
            self._connection.writer.begin(self, metadata)

    def _settle(self) -> None:
        self.is_ended = True
        if self._num_held:
            self.count_held()
        if self.upload is not None:
            self.upload.close()
            # Released now, though the client may read the end of the call late or never.
            self._assembler = self.upload = None
            self._connection.stop_reading(self)

    def _note_end(self, code: grpc.StatusCode) -> None:
        if not self.is_handled:
            headers = self.headers
            duration_s = time.monotonic() - self._began_s
            self._connection.options.on_unhandled(
                UnhandledCall(
                    path=headers.path,
                    peer=self._connection.peer,
                    metadata=headers.metadata,
                    code=code,
                    duration_s=duration_s,
                    is_overload=self._is_overload,
                )
            )

    def _check_size(self, message: Message) -> None:
        # Raises for what is no bytes, while the call can still end with a status.
        size = memoryview(message).nbytes
        options = self._connection.options
        most = options.limits.max_message_bytes
        if size > most:
            # Raised, so that the handler ends too.
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the answer has {size} bytes: at most {most} are sent",
            )
        # While none waits one more may, whatever its size.
        if options.unread.num_bytes and not self._connection.writer.admits(size, self):
            raise overload_error(options, UNREAD)

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._message = self._task = None
        self._connection.stream_closed(self)
        callbacks = self.on_end
        self.on_end = None
        for callback in callbacks or ():
            callback()

    # ---- the handler

    def _run(self, given: Message | CompressedMessage | Requests) -> None:
        self._message = None
        if self._num_held:
            self.count_held()
        running = run_handler(self, self._handler, given)
        self._task = asyncio.get_running_loop().create_task(running)

    def _stop_handler(self) -> None:
        task = self._task
        # A handler that ends its own call is not cancelled.
        if task is not None and not task.done() and task is not asyncio.current_task():
            task.cancel()
            self._connection.handler_cancelled(task)
            # It keeps its exception, whose traceback holds the request and this call.
            self._task = None

    def _expire(self) -> None:
        self._timer = None
        if self.is_ended:
            # It is answered, and the client does not read the answer.
            self._connection.reset_stream(self)
            return
        # The status would wait behind messages that the client's window may never admit.
        self._connection.writer.discard(self)
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
