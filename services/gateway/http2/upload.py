"""What a client may send of a request that is not here at once: first its token, then room."""

import asyncio
from typing import Protocol

import grpc

from services.gateway.http2.call_start import CallStart, Metadatum
from services.gateway.http2.context import AbortError, Context
from services.gateway.http2.limits import STREAM_WINDOW
from services.gateway.http2.messages import PREFIX
from services.gateway.http2.terms import Check
from services.gateway.http2.upload_room import Share, UploadRoom

_IDLE = "the request came too slowly while others waited for its memory; send it again"


class Uploading(Context, Protocol):
    """The call."""

    start: CallStart

    def grant_more(self) -> None:
        """Let the client send more, if it may."""
        ...

    def end(
        self, code: grpc.StatusCode, details: str, trailing: tuple[Metadatum, ...] = ()
    ) -> None:
        """Refuse the call."""
        ...

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """End the call, whatever its handler says."""
        ...


class Upload:
    """One call's; only calls have it whose requests come in parts."""

    def __init__(self, call: Uploading, room: UploadRoom, check: Check | None) -> None:
        """Begin to check the call; None leaves that to its handler, which has begun."""
        self._call, self._room = call, room
        self._share: Share | None = None
        self._is_checked = check is None
        self._checking: asyncio.Task[None] | None = None
        if check is not None:
            self._checking = asyncio.get_running_loop().create_task(self._check(check))

    async def checked(self) -> None:
        """Return once the call may be served; one that may not has ended."""
        if self._checking is not None:
            await self._checking

    def may_grow(self, size: int) -> bool:
        """Whether the client is let send more than it was at first.

        `size` is that of the message that comes, -1 while it is not known.
        """
        if not self._is_checked:
            return False
        if _is_small(size):
            return True
        if self._share is None:
            self._share = self._room.ask(size, self._call.grant_more, self._end_idle)
        return self._share.is_given

    def note_grant(self) -> None:
        """The client was let send more."""
        if self._share is not None:
            self._share.num_granted += 1

    def note_whole(self) -> None:
        """All of the request is here; it keeps its room until it is answered or taken."""
        if self._share is not None:
            self._share.is_whole = True

    def note_taken(self, size: int) -> None:
        """A message of that size was taken of a stream; a large one alone had room."""
        if not _is_small(size):
            self._leave()

    def close(self) -> None:
        """The call is over."""
        self._leave()
        if self._checking is not None and not self._is_checked:
            self._checking.cancel()

    async def _check(self, check: Check) -> None:
        call = self._call
        try:
            await check(call.start.path, call)
        except AbortError as abort:
            self._is_checked = True
            call.end(abort.code, abort.details, tuple(abort.trailing))
            return
        self._is_checked = True
        call.grant_more()

    def _leave(self) -> None:
        share, self._share = self._share, None
        if share is not None:
            self._room.leave(share)

    def _end_idle(self) -> None:
        self._call.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, _IDLE)


def _is_small(size: int) -> bool:
    """Whether a message can be sent without any grant."""
    return size + PREFIX.size <= STREAM_WINDOW
