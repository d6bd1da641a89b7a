"""Memory of calls that are over, while their clients stand still within a frame."""

import asyncio
import gc
import struct
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from h2.settings import SettingCodes

from services.grpc_server.http2.reader import FrameReader
from services.grpc_server.limits import STREAM_WINDOW, Limits
from tests.integration.grpc_server import frames as f

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

MIB = 1 << 20
LARGE = f.message(bytes(STREAM_WINDOW + MIB))
# Of a frame of 1 MiB this and nothing more comes.
CUT = struct.pack("!I", MIB)[1:] + struct.pack("!BBI", f.DATA, 0, 1) + bytes(100_000)


class Memory:
    """Memory for large requests."""

    def __init__(self) -> None:
        self._taken: list[Any] = []

    def take(self, size: int) -> memoryview:
        """See `Take`."""
        memory = np.empty(size, np.uint8)
        self._taken.append(weakref.ref(memory))
        return memory.data

    def is_held(self) -> list[bool]:
        """Whether anybody has them still."""
        gc.collect()
        return [each() is not None for each in self._taken]


async def until(is_so: Callable[[], bool]) -> None:
    """Returns once it is so."""
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.002)


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[FrameReader]:
    """Of connections, in their order."""
    found: list[FrameReader] = []
    advance = FrameReader.advance

    def watched(self: FrameReader, num_bytes: int) -> None:
        if self not in found:
            found.append(self)
        advance(self, num_bytes)

    monkeypatch.setattr(FrameReader, "advance", watched)
    return found


@pytest.mark.parametrize("end", ["refused", "late", "stopped"])
async def test_a_call_that_is_over_keeps_no_memory_within_a_frame(
    host: "Host", readers: list[FrameReader], end: str
) -> None:
    may_end = asyncio.Event()

    async def check(path: str, context: Any) -> None:
        await may_end.wait()
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")

    memory = Memory()
    # Nothing but the end of the call may let the memory go.
    limits = Limits(linger_s=60)
    await host.serve(limits, check=check if end == "refused" else None, take=memory.take)
    client = await host.dial(f.wide())
    # What it would say of its own stood within the frame.
    await client.settled()
    client.is_polite = False
    timeout = [("grpc-timeout", "500m")] if end == "late" else []
    await client.send(f.headers(1, f.request_fields("Echo", timeout)))
    await client.send(f.data(1, LARGE[:MIB]), CUT)
    (reader,) = readers
    # So much is read next, into memory that was taken for it: what all frames share is smaller.
    await until(lambda: len(reader.get_buffer()) == MIB - 100_000)
    may_end.set()
    if end == "stopped":
        stopping = asyncio.create_task(host.server.stop(0))
    await client.answer(1)
    # Once its handler's task has ended.
    await until(lambda: memory.is_held() == [False])
    if end == "stopped":
        client.close()
        await stopping
        return
    # The rest of the frame is stepped over.
    await client.send(bytes(MIB - 100_000))
    assert await client.goes_on(3)


async def test_a_stream_that_is_over_keeps_no_memory_though_answers_wait(host: "Host") -> None:
    memory = Memory()
    await host.serve(Limits(max_upload_bytes=1, stall_timeout_s=0.05), take=memory.take)
    deaf, good = (
        await host.dial(f.greeting({SettingCodes.INITIAL_WINDOW_SIZE: 0})),
        await host.dial(f.wide()),
    )
    await deaf.send(f.headers(1, f.request_fields("Chat")), f.data(1, f.message(b"x")))
    await deaf.settled()
    await deaf.send(f.body(1, LARGE[: 3 * MIB], is_last=False, size=MIB), CUT)
    await deaf.until(lambda: deaf.seen(1).credit > 0)
    await good.send(f.headers(1), f.data(1, f.message(bytes(6 * MIB))[:5]))
    await good.send(f.body(1, bytes(STREAM_WINDOW - 5), is_last=False, size=MIB))
    async with asyncio.timeout(30):
        while not host.unhandled:
            await good.ping()
    assert host.ended() == [("Chat", "RESOURCE_EXHAUSTED")]
    await good.settled()
    assert memory.is_held()[0] is False
