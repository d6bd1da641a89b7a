"""What compressed requests become: in the room of large requests, until they are answered."""

import asyncio
import gzip
import random
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from services.grpc_server.limits import SMALL_BYTES, STREAM_WINDOW, Limits
from services.grpc_server.request.decompression import Decompression
from services.grpc_server.request.messages import StatusError
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host
    from tests.integration.grpc_server.raw_client import RawClient

MIB = 1 << 20
GZIP = ("grpc-encoding", "gzip")
ZEROS = f.message(gzip.compress(bytes(5 * MIB)), flag=1)
SMALL = f.message(gzip.compress(bytes(2 * MIB)), flag=1)
# What ZEROS may become, and no more.
MOST = 6 * MIB


def asked(stream: int, *more: tuple[str, str], method: str = "Hold") -> bytes:
    """A whole call whose request is sent as 5 KiB and becomes 5 MiB."""
    return f.headers(stream, f.request_fields(method, (GZIP, *more))) + f.body(stream, ZEROS)


def is_empty(host: "Host") -> bool:
    """Whether nothing at all has room."""
    # What is larger than all of it has to be alone.
    memory = host.server.options.memory
    reservation = memory.reserve(1 << 60, lambda: None)
    memory.release(reservation)
    return reservation.is_granted and not memory.num_counted


async def wait_until(is_so: Callable[[], bool]) -> None:
    """Returns once it is so."""
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)


async def wait_for_waiting(host: "Host", number: int) -> None:
    """Returns once so many wait for room."""
    await wait_until(lambda: host.server.options.memory.num_waiting == number)


async def let_all_go(host: "Host", client: "RawClient", streams: Iterable[int]) -> None:
    """Open the gate: each is answered, and has given its room back."""
    host.probe.gate.set()
    for stream in streams:
        assert (await client.answer(stream)).status == 0
    assert is_empty(host)


async def test_no_more_is_unpacked_than_there_is_room_for(host: "Host") -> None:
    # Of the second it is not known what it becomes before there is room for the most.
    await host.serve(Limits(max_upload_bytes=5 * MIB + MOST, max_decompressed_bytes=MOST))
    client = await host.dial(f.wide())
    streams = range(1, 15, 2)
    await client.send(*map(asked, streams))
    for _ in range(2):
        assert len(await soon(host.probe.began.get())) == 5 * MIB
    await wait_for_waiting(host, 5)
    assert host.probe.began.empty()
    assert await client.goes_on(101)
    await let_all_go(host, client, streams)


async def test_what_a_client_gives_up_waits_no_longer(host: "Host") -> None:
    await host.serve(Limits(max_upload_bytes=MOST, max_decompressed_bytes=MOST))
    client = await host.dial(f.wide())
    await client.send(asked(1))
    await soon(host.probe.began.get())
    await client.send(asked(3), asked(5))
    await wait_for_waiting(host, 2)
    await client.send(f.rst_stream(3))
    await wait_for_waiting(host, 1)
    assert (await client.ask(asked(7, ("grpc-timeout", "100m")), stream=7)).status == 4
    await wait_for_waiting(host, 1)
    host.probe.gate.set()
    assert ((await client.answer(1)).status, (await client.answer(5)).status) == (0, 0)
    assert sorted(host.ended()) == [("Hold", "CANCELLED"), ("Hold", "DEADLINE_EXCEEDED")]
    assert is_empty(host)


async def test_no_more_wait_than_may(host: "Host") -> None:
    limits = Limits(
        max_upload_bytes=MOST, max_decompressed_bytes=MOST, max_unfinished_bytes=9 * len(ZEROS) - 1
    )
    await host.serve(limits)
    client = await host.dial(f.wide())
    await client.send(asked(1))
    await soon(host.probe.began.get())
    await client.send(*(asked(stream) for stream in range(3, 19, 2)))
    await wait_for_waiting(host, 8)
    answer = await client.ask(asked(19), stream=19)
    assert (answer.status, "upload memory" in answer.trailers["grpc-message"]) == (8, True)
    host.probe.gate.set()
    for stream in range(1, 19, 2):
        assert (await client.answer(stream)).status == 0


@pytest.mark.parametrize("method", ["Echo", "Chat"])
async def test_one_that_is_large_when_it_comes_has_room_for_what_it_becomes(
    host: "Host", method: str
) -> None:
    await host.serve(Limits(max_upload_bytes=1))
    payload = random.Random(0).randbytes(SMALL_BYTES + 2 * MIB)
    sent = f.message(gzip.compress(payload, 1), flag=1)
    client = await host.dial(f.wide())
    await client.send(f.headers(1, f.request_fields(method, (GZIP,))))
    await client.send(f.body(1, sent[:STREAM_WINDOW], is_last=False, size=MIB))
    await client.until(lambda: client.seen(1).credit > 0)
    answer = await client.ask(f.body(1, sent[STREAM_WINDOW:], size=MIB))
    assert answer.messages == [payload]
    assert is_empty(host)


async def test_what_it_may_become_is_counted_before_it_comes(host: "Host") -> None:
    limits = Limits(max_upload_bytes=39 * MIB, max_decompressed_bytes=20 * MIB)
    await host.serve(limits)
    sent = f.message(gzip.compress(random.Random(0).randbytes(SMALL_BYTES + MIB), 1), flag=1)
    clients = [await host.dial(f.wide()) for _ in range(2)]
    for client in clients:
        await client.send(f.headers(1, f.request_fields("Echo", (GZIP,))))
        await client.send(f.body(1, sent[:STREAM_WINDOW], is_last=False, size=MIB))
        await client.settled()
    assert [client.seen(1).credit > 0 for client in clients] == [True, False]
    assert (await clients[0].ask(f.body(1, sent[STREAM_WINDOW:], size=MIB))).status == 0
    await clients[1].until(lambda: clients[1].seen(1).credit > 0)


async def test_what_is_not_compressed_after_all_counts_as_it_comes(host: "Host") -> None:
    """GRPC's clients send what would not become smaller as it is, whatever the call says."""
    await host.serve(Limits(max_upload_bytes=20 * MIB, max_decompressed_bytes=20 * MIB))
    clients = [await host.dial(f.wide()) for _ in range(3)]
    plain = f.message(bytes(6 * MIB))
    for client in clients:
        await client.send(f.headers(1, f.request_fields("Echo", (GZIP,))))
        await client.send(f.body(1, plain[:STREAM_WINDOW], is_last=False, size=MIB))
    for client in clients:
        await client.until(lambda each=client: each.seen(1).credit > 0)  # type: ignore[misc]
    for client in clients:
        assert (await client.ask(f.body(1, plain[STREAM_WINDOW:], size=MIB))).status == 0
    assert is_empty(host)


async def test_a_stream_gives_its_room_back_with_each(host: "Host") -> None:
    await host.serve(Limits(max_upload_bytes=MOST, max_decompressed_bytes=MOST))
    streaming, other = await host.dial(f.wide()), await host.dial(f.wide())
    host.probe.gate.set()
    head = f.headers(1, f.request_fields("Gated", (GZIP,)))
    await streaming.send(head, f.body(1, ZEROS * 3, is_last=False))
    await streaming.until(lambda: len(streaming.seen(1).messages) == 3)
    # Its handler asks for the next one, and the others have the room.
    assert len((await other.ask(asked(1, method="Echo"))).messages[0]) == 5 * MIB
    answer = await streaming.ask(f.body(1, ZEROS))
    assert answer.messages == [b"%d" % (5 * MIB)] * 4
    assert is_empty(host)


@pytest.mark.parametrize("is_slow", [True, False])
async def test_a_stream_does_not_wait_for_itself(host: "Host", *, is_slow: bool) -> None:
    """Nor for another: the room of a request is not asked for while one before it needs some."""
    await host.serve(Limits(max_upload_bytes=MOST, max_decompressed_bytes=MOST))
    large = f.message(gzip.compress(random.Random(0).randbytes(STREAM_WINDOW + MIB), 1), flag=1)
    sent = ZEROS + SMALL + large + ZEROS
    first, rest = sent[:STREAM_WINDOW], sent[STREAM_WINDOW:]
    clients = [await host.dial(f.wide()) for _ in range(2)]
    for client in clients:
        await client.send(f.headers(1, f.request_fields("Gated", (GZIP,))))
        await client.send(f.body(1, first, is_last=False, size=MIB))
    if is_slow:
        # The second request's size is known before the handler takes the first.
        await asyncio.gather(*(client.settled() for client in clients))
    host.probe.gate.set()

    async def answers(client: "RawClient") -> list[bytes]:
        await client.until(lambda: client.seen(1).credit >= len(rest))
        return (await client.ask(f.body(1, rest, size=MIB))).messages

    sizes = [5 * MIB, 2 * MIB, STREAM_WINDOW + MIB, 5 * MIB]
    for found in await asyncio.gather(*map(answers, clients)):
        assert found == [b"%d" % size for size in sizes]
    assert is_empty(host)


async def test_small_ones_do_not_wait_for_uploads(host: "Host") -> None:
    await host.serve(Limits(max_upload_bytes=5 * MIB))
    slow, client = await host.dial(f.wide()), await host.dial(f.wide())
    begun = f.body(1, f.message(bytes(5 * MIB))[: 2 * MIB], is_last=False, size=MIB)
    await slow.send(f.headers(1, f.request_fields("Echo")), begun)
    await slow.settled()
    for stream in range(1, 41, 2):
        head = f.headers(stream, f.request_fields("Echo", (GZIP,)))
        answer = await client.ask(head, f.body(stream, SMALL), stream=stream)
        assert len(answer.messages[0]) == 2 * MIB


async def test_small_ones_count_as_what_they_become_and_have_a_bound(host: "Host") -> None:
    await host.serve(Limits(max_unfinished_bytes=9 * MIB))
    client = await host.dial(f.wide())
    streams = range(1, 17, 2)
    for stream in streams:
        await client.send(f.headers(stream, f.request_fields("Hold", (GZIP,))))
        await client.send(f.body(stream, SMALL))
    for _ in range(4):
        await soon(host.probe.began.get())
    await client.until(lambda: sum(client.seen(stream).is_ended for stream in streams) == 4)
    refused = [stream for stream in streams if client.seen(stream).is_ended]
    assert {client.seen(stream).status for stream in refused} == {8}
    assert host.probe.began.empty()
    await let_all_go(host, client, set(streams) - set(refused))


async def test_one_that_came_whole_before_there_was_room_gives_that_back(host: "Host") -> None:
    """It needs room for what it may become, and then again to be unpacked; it gets it once."""
    await host.serve(Limits(max_upload_bytes=MOST, max_decompressed_bytes=MOST))
    other, client = await host.dial(f.wide()), await host.dial(f.wide())
    await other.send(asked(1))
    await soon(host.probe.began.get())
    payload = random.Random(0).randbytes(SMALL_BYTES + MIB // 8)
    sent = f.message(bytes(5 * MIB // 2)) + f.message(gzip.compress(payload, 1), flag=1)
    # Within a frame of which a part is still to come its client is granted a whole window, and
    # the rest of the frame brings the first bytes of the second request.
    begun, third = 15 * MIB // 8, f.data(1, sent[15 * MIB // 8 : 23 * MIB // 8], is_last=False)
    await client.send(f.headers(1, f.request_fields("Chat", (GZIP,))))
    # Nothing that the client says by itself may come within the frame.
    await client.settled()
    await client.send(f.body(1, sent[:begun], is_last=False, size=MIB), third[: MIB // 8])
    await client.until(lambda: client.seen(1).credit > 0)
    await client.send(third[MIB // 8 :], f.body(1, sent[begun + MIB :], size=MIB))
    await wait_for_waiting(host, 1)
    assert await other.goes_on(101)
    host.probe.gate.set()
    assert [*map(len, (await client.answer(1)).messages)] == [5 * MIB // 2, len(payload)]
    assert (await other.answer(1)).status == 0
    assert is_empty(host)


async def test_what_is_unpacked_for_a_call_that_is_over_takes_no_room(
    host: "Host", monkeypatch: pytest.MonkeyPatch
) -> None:
    reading: list[asyncio.Future[Any]] = []
    may_go, advance = threading.Event(), Decompression.advance

    def held(self: Decompression, num_bytes: int) -> bool:
        if threading.current_thread() is not threading.main_thread():
            may_go.wait(30)
        return advance(self, num_bytes)

    async def aside(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        reading.append(asyncio.ensure_future(anext(requests)))
        yield await asyncio.shield(reading[0])

    monkeypatch.setattr(Decompression, "advance", held)
    method = grpc.stream_stream_rpc_method_handler(aside)
    await host.serve(methods={"Aside": method})
    client = await host.dial(f.wide())
    fields = [
        (name, "/test.More/Aside" if name == ":path" else value)
        for name, value in f.request_fields(more=(GZIP,))
    ]
    await client.send(f.headers(1, fields) + f.body(1, ZEROS))
    await wait_until(lambda: bool(reading))
    await client.send(f.rst_stream(1))
    await client.settled()
    may_go.set()
    with pytest.raises(StatusError, match="the call is over"):
        await soon(reading[0])
    assert is_empty(host)


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", gzip.compress(b"1") + gzip.compress(b"2"), 0),
        ("gzip", gzip.compress(b"12") + b"3", 13),
        ("deflate", zlib.compress(b"12") + zlib.compress(b"3"), 13),
    ],
    ids=["two members", "a byte more", "deflate twice"],
)
async def test_nothing_behind_an_end_is_lost(
    host: "Host", encoding: str, body: bytes, status: int
) -> None:
    await host.serve()
    client = await host.dial(f.wide())
    head = f.headers(1, f.request_fields("Echo", [("grpc-encoding", encoding)]))
    answer = await client.ask(head, f.body(1, f.message(body, flag=1)))
    assert (answer.status, answer.messages) == (status, [] if status else [b"12"])
