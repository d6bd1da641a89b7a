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

from services.grpc_server.request.decompression import Decompression, decompressed
from services.grpc_server.request.messages import CompressedMessage, Message, StatusError

MIB = 1 << 20
# Of any wait for something that is sure to happen.
PATIENCE_S = 30.0
ENDED = gzip.compress(b"whole")
PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
SIZES = [0, 1, 10, 65_535, 65_536, 65_537, 300_000, MIB, 3 * MIB + 1]


class Memory:
    """Memory that calls reserve, and wait for until it is free.

    Attributes:
        reserved: sizes that were asked for.
    """

    def __init__(self) -> None:
        self.reserved: list[int] = []
        self.is_free = asyncio.Event()

    async def reserve(self, num_bytes: int) -> None:
        """Wait for some."""
        self.reserved.append(num_bytes)
        await self.is_free.wait()


@pytest.fixture
def memory() -> Memory:
    return Memory()


async def unpacked(packed: CompressedMessage) -> Message:
    """The message, where there is much memory."""
    memory = Memory()
    memory.is_free.set()
    return await decompressed(packed, memory.reserve)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of threads that have unpacked something, without their numbers."""
    found: set[str] = set()
    advance = Decompression.advance

    def seen(self: Decompression, num_bytes: int) -> bool:
        found.add(threading.current_thread().name.partition("_")[0])
        return advance(self, num_bytes)

    monkeypatch.setattr(Decompression, "advance", seen)
    return found


@pytest.mark.parametrize("encoding", PACKERS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_random", [True, False])
async def test_what_was_packed_comes_out(encoding: str, size: int, *, is_random: bool) -> None:
    payload = random.Random(0).randbytes(size) if is_random else bytes(size)
    packed = CompressedMessage(PACKERS[encoding](payload), encoding, max(size, 1))
    assert bytes(await unpacked(packed)) == payload


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (gzip.compress(bytes(MIB + 1)), "RESOURCE_EXHAUSTED", "more than 1048576 bytes, the limit"),
        (gzip.compress(bytes(100 * MIB)), "RESOURCE_EXHAUSTED", "max_decompressed_bytes"),
        (gzip.compress(b"x")[:-1], "INTERNAL", "incomplete"),
        (gzip.compress(random.Random(0).randbytes(MIB // 2))[:-9], "INTERNAL", "incomplete"),
        (gzip.compress(bytes(MIB))[:-8] + bytes(8), "INTERNAL", "not gzip"),
        (b"plain", "INTERNAL", "not gzip"),
        (b"", "INTERNAL", "incomplete"),
        (ENDED + b"more", "INTERNAL", "not gzip after its first end"),
        (ENDED + bytes(8), "INTERNAL", "not gzip after its first end"),
        (ENDED + bytes(100_000), "INTERNAL", "not gzip after its first end"),
        (ENDED + ENDED[:-1], "INTERNAL", "incomplete"),
        (gzip.compress(bytes(MIB // 2)) * 2 + ENDED, "RESOURCE_EXHAUSTED", "more than 1048576"),
        (ENDED * 1001, "INTERNAL", "more than 1000 members"),
        (ENDED + zlib.compress(b"x"), "INTERNAL", "not gzip after its first end"),
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
        "more behind it",
        "zeros behind it",
        "much behind it",
        "second member cut off",
        "members too large together",
        "too many members",
        "deflate behind it",
    ],
)
async def test_what_cannot_be_unpacked_is_said(body: bytes, code: str, words: str) -> None:
    with pytest.raises(StatusError, match=words) as fault:
        await unpacked(CompressedMessage(body, "gzip", MIB))
    assert fault.value.code is grpc.StatusCode[code]


@pytest.mark.parametrize(
    "sizes",
    [[3, 4], [0, 0, 5], [MIB, 0, MIB], [1] * 1000, [65_536, 65_536, 7]],
    ids=["two", "empty ones", "large ones", "many", "on borders"],
)
@pytest.mark.parametrize("is_random", [True, False])
async def test_gzip_of_several_members_is_all_of_them(sizes: list[int], *, is_random: bool) -> None:
    source = random.Random(0)
    parts = [source.randbytes(size) if is_random else bytes(size) for size in sizes]
    body = b"".join(map(gzip.compress, parts))
    assert bytes(await unpacked(CompressedMessage(body, "gzip", 4 * MIB))) == b"".join(parts)


@pytest.mark.parametrize(
    "more", [b"x", zlib.compress(b"x"), bytes(100_000)], ids=["a byte", "more of it", "much"]
)
async def test_deflate_has_nothing_behind_its_end(more: bytes) -> None:
    with pytest.raises(StatusError, match="in deflate has data after its end") as fault:
        await unpacked(CompressedMessage(zlib.compress(b"x") + more, "deflate", MIB))
    assert fault.value.code is grpc.StatusCode.INTERNAL


# Empty blocks, and a file's name: much that goes in, of which nothing comes out.
SLOW = {
    "deflate": b"\x78\x9c" + b"\0\0\0\xff\xff" * 20_000 + zlib.compress(b"")[2:],
    "gzip": b"\x1f\x8b\x08\x08\0\0\0\0\0\xff" + b"a" * 100_000 + b"\0" + gzip.compress(b"")[10:],
}


@pytest.mark.parametrize("encoding", SLOW)
async def test_what_is_long_goes_beside_the_event_loop_though_nothing_comes_out(
    threads: set[str], encoding: str
) -> None:
    assert not await unpacked(CompressedMessage(SLOW[encoding], encoding, MIB))
    assert threads == {"decompress"}


async def test_a_large_message_is_unpacked_beside_the_event_loop_and_is_never_there_twice(
    threads: set[str],
) -> None:
    body = gzip.compress(bytes(64 * MIB))
    tracemalloc.start()
    try:
        message = await unpacked(CompressedMessage(body, "gzip", 64 * MIB))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(message) == 64 * MIB
    assert peak < 80 * MIB
    assert threads == {"decompress", "decompress-large"}


async def test_what_becomes_large_holds_up_nothing_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_go, advance = threading.Event(), Decompression.advance

    def held(self: Decompression, num_bytes: int) -> bool:
        if threading.current_thread().name.startswith("decompress-large"):
            may_go.wait(PATIENCE_S)
        return advance(self, num_bytes)

    monkeypatch.setattr(Decompression, "advance", held)
    large = CompressedMessage(gzip.compress(bytes(6 * MIB)), "gzip", 8 * MIB)
    waiting = [asyncio.create_task(unpacked(large)) for _ in range(20)]
    async with asyncio.timeout(PATIENCE_S):
        small = await unpacked(CompressedMessage(gzip.compress(bytes(3 * MIB)), "gzip", 8 * MIB))
    assert len(small) == 3 * MIB
    assert not any(task.done() for task in waiting)
    may_go.set()
    assert {len(message) for message in await asyncio.gather(*waiting)} == {6 * MIB}


@pytest.mark.parametrize(
    ("size", "expected"), [(1000, {"MainThread"}), (MIB, {"MainThread", "decompress"})]
)
async def test_a_short_message_is_begun_at_once(
    threads: set[str], size: int, expected: set[str]
) -> None:
    await unpacked(CompressedMessage(gzip.compress(bytes(size)), "gzip", MIB))
    assert threads == expected


async def test_what_nobody_waits_for_is_not_unpacked_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Decompression] = []
    has_begun, may_go, has_ended = threading.Event(), threading.Event(), threading.Event()
    advance = Decompression.advance

    def held(self: Decompression, num_bytes: int) -> bool:
        if threading.current_thread() is threading.main_thread():
            return advance(self, num_bytes)
        made.append(self)
        has_begun.set()
        may_go.wait(PATIENCE_S)
        is_done = advance(self, num_bytes)
        has_ended.set()
        return is_done

    monkeypatch.setattr(Decompression, "advance", held)
    task = asyncio.create_task(
        unpacked(CompressedMessage(gzip.compress(bytes(50 * MIB)), "gzip", 64 * MIB))
    )
    await asyncio.to_thread(has_begun.wait, PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_go.set()
    await asyncio.to_thread(has_ended.wait, PATIENCE_S)
    assert (len(made), made[0].num_bytes) == (1, 0)


@pytest.mark.parametrize(("size", "expected"), [(4 * MIB, []), (6 * MIB, [9 * MIB])])
async def test_what_is_large_then_waits_for_memory_for_all_that_it_may_become(
    memory: Memory, size: int, expected: list[int]
) -> None:
    memory.is_free.set()
    body = gzip.compress(random.Random(0).randbytes(size), 1)
    await decompressed(CompressedMessage(body, "gzip", 9 * MIB), memory.reserve)
    assert memory.reserved == expected


async def test_what_has_memory_already_asks_for_none(threads: set[str]) -> None:
    payload = bytes(20 * MIB)
    packed = CompressedMessage(gzip.compress(payload), "gzip", len(payload))
    assert await decompressed(packed, None) == payload
    assert threads == {"decompress-large"}


async def test_what_waits_for_memory_holds_none(memory: Memory) -> None:
    payload = bytes(40 * MIB)
    packed = CompressedMessage(gzip.compress(payload), "gzip", len(payload))
    tracemalloc.start()
    try:
        task = asyncio.create_task(decompressed(packed, memory.reserve))
        async with asyncio.timeout(PATIENCE_S):
            # The thread that has decompressed some lets go of it a moment later.
            while not memory.reserved or tracemalloc.get_traced_memory()[0] > MIB // 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (peak < 8 * MIB, task.done()) == (True, False)
    memory.is_free.set()
    assert await task == payload
