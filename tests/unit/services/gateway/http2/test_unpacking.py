"""Compressed messages: what comes out of them, how much, where, and in how much memory."""

import asyncio
import gzip
import random
import threading
import tracemalloc
import zlib
from collections.abc import Callable

import grpc
import pytest

from services.gateway.http2 import unpacking
from services.gateway.http2.messages import MessageFault, Packed
from services.gateway.http2.unpacking import unpacked

MIB = 1 << 20
PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
SIZES = [0, 1, 10, 65_535, 65_536, 65_537, 300_000, MIB, 3 * MIB + 1]


@pytest.mark.parametrize("encoding", PACKERS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_random", [True, False])
async def test_what_was_packed_comes_out(encoding: str, size: int, *, is_random: bool) -> None:
    payload = random.Random(0).randbytes(size) if is_random else bytes(size)
    packed = Packed(PACKERS[encoding](payload), encoding, max(size, 1))
    assert bytes(await unpacked(packed)) == payload


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (gzip.compress(bytes(MIB + 1)), "RESOURCE_EXHAUSTED", "more than 1048576 bytes, which is"),
        (gzip.compress(bytes(100 * MIB)), "RESOURCE_EXHAUSTED", "max_decompressed_bytes"),
        (gzip.compress(b"x")[:-1], "INTERNAL", "cut off"),
        (gzip.compress(random.Random(0).randbytes(MIB // 2))[:-9], "INTERNAL", "cut off"),
        (gzip.compress(bytes(MIB))[:-8] + bytes(8), "INTERNAL", "not gzip"),
        (b"plain", "INTERNAL", "not gzip"),
        (b"", "INTERNAL", "cut off"),
    ],
    # Not the bytes: gzip writes the time into them, and two processes of a run would differ.
    ids=[
        "a byte too large",
        "a bomb",
        "cut off",
        "large and cut off",
        "wrong sum",
        "plain",
        "none",
    ],
)
async def test_what_cannot_be_unpacked_is_said(body: bytes, code: str, words: str) -> None:
    with pytest.raises(MessageFault, match=words) as fault:
        await unpacked(Packed(body, "gzip", MIB))
    assert fault.value.code is grpc.StatusCode[code]


async def test_a_large_message_is_unpacked_beside_the_event_loop_and_is_never_there_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: set[str] = set()
    step = unpacking._Unpacking._step

    def seen_step(self: unpacking._Unpacking, num_bytes: int) -> bool:
        threads.add(threading.current_thread().name.partition("_")[0])
        return step(self, num_bytes)

    monkeypatch.setattr(unpacking._Unpacking, "_step", seen_step)
    body = gzip.compress(bytes(64 * MIB))
    tracemalloc.start()
    try:
        message = await unpacked(Packed(body, "gzip", 64 * MIB))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(message) == 64 * MIB
    assert peak < 80 * MIB
    assert threads == {"MainThread", "unpack"}
    threads.clear()
    await unpacked(Packed(gzip.compress(bytes(1000)), "gzip", MIB))
    assert threads == {"MainThread"}


async def test_what_nobody_waits_for_is_not_unpacked_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[unpacking._Unpacking] = []
    has_begun, may_go, has_ended = threading.Event(), threading.Event(), threading.Event()
    go_on = unpacking._Unpacking.go_on

    def held(self: unpacking._Unpacking, num_bytes: int) -> bool:
        if threading.current_thread() is threading.main_thread():
            return go_on(self, num_bytes)
        made.append(self)
        has_begun.set()
        may_go.wait(10)
        is_done = go_on(self, num_bytes)
        has_ended.set()
        return is_done

    monkeypatch.setattr(unpacking._Unpacking, "go_on", held)
    task = asyncio.create_task(unpacked(Packed(gzip.compress(bytes(50 * MIB)), "gzip", 64 * MIB)))
    await asyncio.to_thread(has_begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_go.set()
    await asyncio.to_thread(has_ended.wait, 10)
    assert len(made[0].message) < 5 * MIB
