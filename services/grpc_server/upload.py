"""What a client may send of requests that are not here at once: first its token, then room."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import grpc

from services.grpc_server.context import AbortError, Context
from services.grpc_server.decompression import decompressed
from services.grpc_server.limits import GRANT_BYTES, SMALL_BYTES
from services.grpc_server.messages import CompressedMessage, Message, MessageAssembler, StatusError
from services.grpc_server.request_headers import Metadatum, RequestHeaders
from services.grpc_server.server_options import Check, ServerOptions
from services.grpc_server.upload_room import Sender, Share

IDLE: Final = "the request came too slowly while others waited for its memory; send it again"
_DEAF: Final = "answers were not read while others waited for the memory of the next request"
_CROWDED: Final = "too many requests that are not whole wait for memory; send it again later"


class Uploading(Protocol):
    """The call; see `Call` and `SendStream` for its attributes."""

    headers: RequestHeaders
    num_pending: int
    num_sent: int
    window_in: int

    @property
    def context(self) -> Context:
        """Its handler's."""
        ...

    def grant_more(self) -> None:
        """Let the client send more, if it may."""
        ...

    def end(
        self, code: grpc.StatusCode, details: str, trailing: tuple[Metadatum, ...] = ()
    ) -> None:
        """Refuse the call."""
        ...

    def fail(self, fault: StatusError) -> None:
        """End the call, whatever its handler says."""
        ...


def overload_fault(options: ServerOptions, words: str = _CROWDED) -> StatusError:
    """What ends a call that there is no memory for."""
    overload = options.overload
    return StatusError(overload.code, words, overload.trailing, is_overload=True)


class Upload:
    """One call's; only calls have it whose requests come in parts.

    A large message has its share of the room from when it begins to come: in a unary call until
    that is over, on a stream until its handler asks for the next one or gives back what it held.
    """

    def __init__(
        self,
        call: Uploading,
        assembler: MessageAssembler,
        options: ServerOptions,
        *,
        is_stream: bool,
    ) -> None:
        """Begin to check the call; a stream is checked by its handler, which has begun."""
        self._call, self._assembler, self._options = call, assembler, options
        self._is_stream = is_stream
        self._is_packed = call.headers.encoding != "identity"
        self._is_unpacking = False
        self._num_granted = 0
        # Of the message that comes or was not taken yet; its number among all.
        self._share: Share | None = None
        self._number = self._num_taken = 0
        # Of the message that was taken last.
        self._taken: Share | None = None
        # Without room, and of these the message that waits to be unpacked.
        self._num_unfinished = self._num_packed = 0
        # Of the answers: what was sent before, and what of the rest must be by the next look.
        self._num_sent = self._num_due = 0
        self._is_checked = options.check is None
        self._is_closed = False
        self._checking: asyncio.Task[None] | None = None
        if options.check is not None and not is_stream:
            self._checking = asyncio.get_running_loop().create_task(self._check(options.check))

    @property
    def num_unread_bytes(self) -> int:
        """What came whole of a stream and was not taken; a unary call's request never counts."""
        return self._assembler.num_whole_bytes if self._is_stream else 0

    def note_received(self) -> None:
        """Something came: end the call if that is more than may be held of all."""
        num_bytes = self._num_unfinished
        self._count()
        if self._num_unfinished > num_bytes and self._options.unfinished.is_full:
            self._call.fail(overload_fault(self._options))

    def _count(self) -> None:
        """Keep the account of what is held without room."""
        num_bytes = 0
        if not self._is_closed:
            num_bytes = self._assembler.num_bytes + self._num_packed
            for share in (self._share, self._taken):
                if share is not None and share.is_given:
                    num_bytes -= share.num_bytes
            num_bytes = max(num_bytes, 0)
        self._options.unfinished.count(num_bytes - self._num_unfinished)
        self._num_unfinished = num_bytes

    async def checked(self) -> None:
        """Return once the call may be served; one that may not has ended."""
        if self._checking is not None:
            await self._checking

    def note_reading(self) -> bool:
        """The handler of a stream asks for a message; whether that is the first time.

        Then it has found the call to be one that may be served.
        """
        was_checked, self._is_checked = self._is_checked, True
        return not was_checked

    def may_grow(self, num_bytes: int) -> bool:
        """Whether the client is let send so much more than at first; if so, it has to."""
        if not self._is_checked:
            return False
        size = self._assembler.size
        if size > SMALL_BYTES:
            share = self._share or self._share_of(size)
            if share is None or not share.is_given:
                return False
            self._count()
            self._note_pending()
        self._num_granted += num_bytes
        return True

    def leave_taken(self) -> None:
        """Its handler has done with the message that it took last, unless it holds it."""
        share, self._taken = self._taken, None
        if share is not None:
            share.leave()

    def note_taken(self) -> None:
        """The oldest message is its handler's now."""
        share = self._share
        if share is not None and self._num_taken == self._number:
            # The client has done its part, and is not looked at any more.
            share.is_whole = True
            self._taken, self._share = share, None
        self._num_taken += 1
        self._count()

    def hold(self) -> Callable[[], None] | None:
        """See `Context.hold`."""
        share, self._taken = self._taken, None
        return None if share is None else share.leave

    # ---- of the message that was taken last, when it is unpacked

    @property
    def has_room(self) -> bool:
        """Whether there is room for whatever the message may become."""
        return self._taken is not None and self._taken.is_given

    def ask(self, num_bytes: int, on_given: Callable[[], None]) -> Share:
        """A share for what the message becomes, where it has no room.

        Small ones need one too: a client sends a thousandth of them. Theirs is of a room of their
        own, as nobody holds that for as long as an upload takes. It is given back as that of a
        message which is not compressed.

        Raises:
            StatusError: the call is over.
        """
        if self._is_closed:
            raise StatusError(grpc.StatusCode.CANCELLED, "the call is over")
        room = self._options.small_room if num_bytes <= SMALL_BYTES else self._options.room
        # Nobody waits here with a share: those who did could all wait for each other.
        self.leave_taken()
        self._taken = room.ask(num_bytes, on_given)
        return self._taken

    async def unpacked(self, message: CompressedMessage) -> Message:
        """The message that was taken last; raises as `decompression.decompressed`.

        Its client gets no room for the next one meanwhile: this one could wait for that.
        """
        self._is_unpacking, self._num_packed = True, len(message.body)
        self._count()
        try:
            unpacked = await decompressed(message, self)
        finally:
            self._is_unpacking, self._num_packed = False, 0
            self._count()
        if self._taken is not None:
            self._taken.shrink(len(unpacked))
        return unpacked

    def close(self) -> None:
        """The call is over; what is held of it is not."""
        self._is_closed = True
        self._count()
        self.leave_taken()
        share, self._share = self._share, None
        if share is not None:
            share.leave()
        if self._checking is not None and not self._is_checked:
            self._checking.cancel()

    async def _check(self, check: Check) -> None:
        call = self._call
        try:
            await check(call.headers.path, call.context)
        except AbortError as abort:
            self._is_checked = True
            call.end(abort.code, abort.details, tuple(abort.trailing))
            return
        self._is_checked = True
        call.grant_more()

    def _share_of(self, size: int) -> Share | None:
        """A share for the message that comes; None if it is not its turn."""
        if self._is_packed and (self._is_unpacking or self._assembler.num_whole):
            # Those before it may need room to be unpacked, and could wait for this one's.
            return None
        self._number = self._num_taken + self._assembler.num_whole
        # What is sent compressed may become this; not all is, also where the call says how.
        most = self._options.limits.max_decompressed_bytes if self._assembler.is_compressed else 0
        self._share = self._options.room.ask(
            max(size, most), self._call.grant_more, Sender(size, self._num_received, self._end_idle)
        )
        return self._share

    def _num_received(self) -> int:
        """Bytes that came, but for how many did before the first was granted."""
        return self._num_granted - self._call.window_in

    # ---- while others wait for room

    def _end_idle(self) -> None:
        """The client was granted little since the last look: end the call if that is its fault."""
        is_whole = self._number < self._num_taken + self._assembler.num_whole
        if not (is_whole and self._is_stream):
            self._call.fail(overload_fault(self._options, IDLE))
        elif self._is_deaf():
            # Its handler takes nothing while its answers are not taken.
            self._call.fail(overload_fault(self._options, _DEAF))

    def _is_deaf(self) -> bool:
        """Whether answers wait, and since the last look the client took next to nothing of them."""
        is_deaf = self._call.num_sent - self._num_sent < self._num_due
        self._note_pending()
        return is_deaf

    def _note_pending(self) -> None:
        self._num_sent = self._call.num_sent
        self._num_due = min(self._call.num_pending, GRANT_BYTES)
