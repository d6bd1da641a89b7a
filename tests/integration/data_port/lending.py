"""What the tests of lent memory share: requests in slots, and replicas that hold on to them."""

import asyncio
from collections.abc import Callable
from typing import Any

from services.contracts.errors import InvalidRequestError, OverloadedError
from services.contracts.transport.frames import (
    Frame,
    InferFrame,
    Kind,
    decode_error,
    encode_hello,
    header,
)
from services.gateway.upstream.arena import MIN_ARENA_BYTES, RequestArena
from services.gateway.upstream.arena_link import ArenaLink, lend_arena

ARENA_BYTES = 2 * MIN_ARENA_BYTES
SIZE = 602_112
# Of any wait for something that is sure to happen.
PATIENCE_S = 30.0


def requested(arena: RequestArena, size: int = SIZE, fill: int = 7) -> memoryview:
    """A request as HTTP/2 leaves it in the arena."""
    payload = arena.take(size)
    assert payload is not None
    payload[:] = bytes([fill]) * size
    return payload


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what gives no sign of itself: a byte of a ledger, the end of a link."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)


async def until_free(arena: RequestArena) -> None:
    """Waits until nothing of the arena is taken."""
    await until(lambda: arena.num_taken_bytes == 0)


async def failure_of(asking: asyncio.Task[Any]) -> BaseException | None:
    """What a request failed with: raised, it would refer to the task, and that to the request."""
    await asyncio.wait([asking], timeout=PATIENCE_S)
    return None if asking.cancelled() else asking.exception()


async def open_link(arena: RequestArena, address: str, token: bytes) -> ArenaLink | None:
    """Gives a replica the arena and says nothing of it on a data connection; None if it refuses."""
    found: list[ArenaLink] = []

    async def keep(link: ArenaLink) -> None:
        found.append(link)

    await lend_arena(arena, address.removeprefix("unix:"), token, keep)
    return found[0] if found else None


def wire(kind: Kind, request_id: int, meta: bytes = b"", payload: bytes = b"") -> bytes:
    """One frame's bytes."""
    return header(kind, request_id, len(meta), len(payload)) + meta + payload


async def refusal_of(port: Any, address: str, token: bytes, link: ArenaLink) -> str:
    """Why a connection of its own may not use that link; it goes on without."""
    peer = await port.dial_raw(address)
    peer.writer.write(
        wire(Kind.HELLO, 0, encode_hello(token))
        + wire(Kind.LEND, 1, payload=link.link_id)
        + wire(Kind.PING, 2)
    )
    async with asyncio.timeout(PATIENCE_S):
        hello, error, pong = [await peer.read_frame() for _ in range(3)]
    assert (hello.kind, error.kind, error.request_id) == (Kind.HELLO, Kind.ERROR, 1)
    assert pong == Frame(Kind.PONG, 2, b"", b"")
    reason = decode_error(error)
    assert isinstance(reason, InvalidRequestError)
    return str(reason)


class Holding:
    """A handler that answers when it is told to, and may keep what it was given.

    Attributes:
        kept: requests that stay alive whatever becomes of them.
        failure: what is raised in place of an answer.
    """

    def __init__(self, *, keeps: bool = False) -> None:
        self.kept: list[Any] = []
        self.started, self.release = asyncio.Semaphore(0), asyncio.Event()
        self.failure = ""
        self._keeps = keeps

    async def __call__(self, frame: InferFrame) -> bytes:
        """Answers with the first and the last byte, as they are at the end."""
        if self._keeps:
            self.kept.append(frame.request)
        self.started.release()
        await self.release.wait()
        if self.failure:
            raise OverloadedError(self.failure)
        return bytes((frame.request[0], frame.request[-1]))

    async def wait_started(self) -> None:
        """Returns when it was given one more request."""
        async with asyncio.timeout(PATIENCE_S):
            await self.started.acquire()
