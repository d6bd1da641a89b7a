"""What the tests of lent memory share: requests in slots, and replicas that hold on to them."""

import asyncio
from collections.abc import Callable
from typing import Any

from services.contracts.errors import OverloadedError
from services.contracts.transport.frames import Frame, InferFrame, Kind, decode_error, header
from services.gateway.upstream.arena import MIN_ARENA_BYTES, RequestArena

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


def wire(kind: Kind, request_id: int, meta: bytes = b"", payload: bytes = b"") -> bytes:
    """One frame's bytes."""
    return header(kind, request_id, len(meta), len(payload)) + meta + payload


async def refusal_of(peer: Any, payload: bytes) -> str:
    """Why a peer that was greeted may not lend that; its connection goes on without."""
    peer.writer.write(wire(Kind.LEND, 7, payload=payload) + wire(Kind.PING, 8))
    async with asyncio.timeout(PATIENCE_S):
        error, pong = [await peer.read_frame() for _ in range(2)]
    assert (error.kind, error.request_id) == (Kind.ERROR, 7)
    assert pong == Frame(Kind.PONG, 8, b"", b"")
    return str(decode_error(error))


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
