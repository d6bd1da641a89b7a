"""Admission of a request that comes in several parts: authorization first, then memory."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc

from services.grpc_server.calls.context import AbortError
from services.grpc_server.limits import GRANT_BYTES, SMALL_BYTES
from services.grpc_server.request.decompression import decompressed
from services.grpc_server.request.messages import (
    CompressedMessage,
    Message,
    MessageAssembler,
    StatusError,
)
from services.grpc_server.request.request_memory import Reservation
from services.grpc_server.server_options import Check, ServerOptions

if TYPE_CHECKING:
    from services.grpc_server.request.receive_stream import ReceiveStream

SLOW_REQUEST: Final = "the request arrived too slowly while others waited for memory; retry"
_SLOW_READER: Final = "answers were not read while other requests waited for memory"
_FULL: Final = "incomplete requests use all of the upload memory; retry later"
# Within so many checks all of a request must be here, whatever its size.
_MAX_CHECKS: Final = 20


def overload_error(options: ServerOptions, details: str = _FULL) -> StatusError:
    """What ends a call that there is no memory for."""
    overload = options.overload
    return StatusError(overload.code, details, overload.trailing, is_overload=True)


class Upload:
    """One call's; calls whose request is a single DATA frame have none.

    A large message has a reservation from its first bytes: in a unary call until that has ended, on
    a stream until the handler asks for the next message or releases what it held.
    """

    def __init__(
        self,
        call: "ReceiveStream",
        assembler: MessageAssembler,
        options: ServerOptions,
        *,
        is_stream: bool,
    ) -> None:
        """Begin to check the call; a stream is checked by its handler, which runs already.

        Args:
            call: whose request this is.
            assembler: makes messages of the DATA that came.
            options: the server's memory for large messages, and its check of a call.
            is_stream: the client may send several messages.
        """
        self._call = call
        self._assembler = assembler
        self._options = options
        self._memory = options.memory
        self._is_stream = is_stream
        self._is_compressed = call.headers.encoding != "identity"
        # Of the large message that comes or was not taken: its number among all, and its size.
        self._reservation: Reservation | None = None
        self._number = self._size = self._num_taken = 0
        # Of the message that was taken last, and its bytes where it has none.
        self._taken: Reservation | None = None
        self._num_decompressed = 0
        # Of the message that is decompressed now.
        self._is_decompressing = False
        self._num_compressed = 0
        # At the last check: whether the client had to read, how far it was; and what is due.
        self._last: tuple[bool, int] | None = None
        self._num_due = 0
        self._is_checked = options.check is None
        self._is_closed = False
        self._checking: asyncio.Task[None] | None = None
        if options.check is not None and not is_stream:
            self._checking = asyncio.get_running_loop().create_task(self._check(options.check))

    @property
    def num_unread_bytes(self) -> int:
        """Complete messages of a stream that its handler has not read; 0 for a unary call."""
        return self._assembler.num_whole_bytes if self._is_stream else 0

    @property
    def num_counted_bytes(self) -> int:
        """What is held of the request without a reservation."""
        num_bytes = self._assembler.num_bytes + self._num_compressed + self._num_decompressed
        if self._reservation is not None and self._reservation.is_granted:
            num_bytes -= self._num_received
        return num_bytes

    @property
    def _is_whole(self) -> bool:
        """Whether the message with the reservation is complete."""
        return self._number < self._num_taken + self._assembler.num_whole

    @property
    def _num_received(self) -> int:
        """Bytes of the message with the reservation."""
        return self._size if self._is_whole else self._assembler.num_partial_bytes

    async def checked(self) -> None:
        """Return once the call is authorized; one that is not has ended."""
        if self._checking is not None:
            await self._checking

    def note_reading(self) -> bool:
        """A stream's handler reads; True the first time, when it has found the call authorized."""
        was_checked = self._is_checked
        self._is_checked = True
        return not was_checked

    def may_grow(self) -> bool:
        """Whether the client may send more than the stream's first window."""
        if not self._is_checked:
            return False
        if self._assembler.size > SMALL_BYTES:
            if self._reservation is None:
                self._reserve_incoming()
            if self._reservation is None or not self._reservation.is_granted:
                return False
            self._call.count_held()
        return True

    def _reserve_incoming(self) -> None:
        assembler = self._assembler
        if self._is_compressed and (self._is_decompressing or assembler.num_whole):
            # Messages before it may need memory to be decompressed, and could wait for this one.
            return
        self._number = self._num_taken + assembler.num_whole
        self._size = assembler.size
        # What is sent compressed may become this; not all is, also where the call has an encoding.
        most = self._options.limits.max_decompressed_bytes if assembler.is_compressed else 0
        num_bytes = max(assembler.size, most)
        self._reservation = self._memory.reserve(num_bytes, self._call.grant_more)

    # ---- of the message that was taken last

    def note_taken(self) -> None:
        """The oldest message is its handler's now."""
        if self._reservation is not None and self._num_taken == self._number:
            self._taken = self._reservation
            self._reservation = None
        self._num_taken += 1
        self._call.count_held()

    def release_taken(self) -> None:
        """Its handler is done with the message that it took last, unless it holds that."""
        taken = self._taken
        self._taken = None
        self._num_decompressed = 0
        if taken is not None:
            self._memory.release(taken)

    def hold(self) -> Callable[[], None] | None:
        """See `servicer_context.hold_request`."""
        taken = self._taken
        self._taken = None
        return None if taken is None else partial(self._memory.release, taken)

    async def decompressed(self, message: CompressedMessage) -> Message:
        """The message that was taken last.

        Its client gets no memory for the next one meanwhile, which this one could wait for.

        Raises:
            StatusError: it cannot be decompressed, there is no memory for it, or the call is over.
        """
        is_reserved = self._taken is not None and self._taken.is_granted
        self._num_compressed = 0 if is_reserved else len(message.body)
        self._count()
        self._is_decompressing = True
        try:
            found = await decompressed(message, None if is_reserved else self._reserve_taken)
        finally:
            self._is_decompressing = False
            self._num_compressed = 0
        if self._taken is None:
            self._num_decompressed = len(found)
        else:
            self._memory.shrink(self._taken, len(found))
        self._count()
        return found

    async def _reserve_taken(self, num_bytes: int) -> None:
        """Return once there is memory for what the message becomes."""
        # None waits with a reservation: those that did could all wait for each other.
        self.release_taken()
        self._count()
        is_granted = asyncio.Event()
        self._taken = self._memory.reserve(num_bytes, is_granted.set)
        if not self._taken.is_granted:
            await is_granted.wait()

    def _count(self) -> None:
        """Keep the account; raises StatusError when the call is over, by this or before."""
        self._call.count_held()
        if self._is_closed:
            raise StatusError(grpc.StatusCode.CANCELLED, "the call is over")

    # ---- while others wait for memory

    def overload(self) -> str:
        """Why the call has to give its memory to others that wait; "" where it makes progress.

        Its client has to send the message with the reservation, or, where that is complete and not
        read, to read the answers before it: those are what its handler waits for.
        """
        reservation = self._reservation
        call = self._call
        is_granted = reservation is not None and reservation.is_granted
        if not is_granted or not self._memory.has_waiters(self._options.limits.stall_timeout_s):
            self._last = None
            return ""
        is_reader = self._is_stream and self._is_whole
        progress = call.num_sent if is_reader else self._num_received
        last = self._last
        self._last = (is_reader, progress)
        if last is None or last[0] != is_reader:
            is_slow = False
            self._num_due = progress
        else:
            is_slow = progress < self._num_due or (not is_reader and progress == last[1])
        if is_reader:
            self._num_due = progress + min(call.num_pending, GRANT_BYTES)
            return _SLOW_READER if is_slow else ""
        self._num_due += self._size // _MAX_CHECKS
        return SLOW_REQUEST if is_slow else ""

    def close(self) -> None:
        """The call is over; what its handler holds is not."""
        self._is_closed = True
        self.release_taken()
        reservation = self._reservation
        self._reservation = None
        if reservation is not None:
            self._memory.release(reservation)
        # Not of the check itself, which ends the call that it refuses.
        if self._checking is not None and not self._is_checked:
            self._checking.cancel()

    async def _check(self, check: Check) -> None:
        call = self._call
        context: Any = call.context
        try:
            await check(call.headers.path, context)
        except AbortError as abort:
            self._is_checked = True
            call.end(abort.code, abort.details, tuple(abort.trailing))
            return
        self._is_checked = True
        call.grant_more()
