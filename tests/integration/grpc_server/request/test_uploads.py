"""Requests that come in parts: whose they are, whether there is room, and how they end."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from services.grpc_server.limits import SMALL_BYTES, STREAM_WINDOW, Limits
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host
    from tests.integration.grpc_server.raw_client import RawClient

MIB = 1 << 20
LARGE = f.message(bytes(STREAM_WINDOW + MIB))
FIRST, REST = LARGE[:STREAM_WINDOW], LARGE[STREAM_WINDOW:]
GZIP = [("grpc-encoding", "gzip")]


class Door:
    """A check that takes calls with metadata `pass`, when it is opened."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.num_asked = 0

    async def check(self, path: str, context: Any) -> None:
        """Refuse those without."""
        self.num_asked += 1
        await self.is_open.wait()
        if ("pass", "yes") not in context.invocation_metadata():
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"not {path}", (("why", "no"),))


def begun(stream: int, *more: tuple[str, str], method: str = "Echo") -> bytes:
    """A call and as much of its large request as may be sent without any grant."""
    head = f.headers(stream, f.request_fields(method, more))
    return head + f.body(stream, FIRST, is_last=False, size=MIB)


def is_empty(host: "Host") -> bool:
    """Whether nothing has room."""
    # What is larger than all of it has to be alone.
    memory = host.server.options.memory
    reservation = memory.reserve(1 << 60, lambda: None)
    memory.release(reservation)
    return reservation.is_granted


async def finish(client: "RawClient", stream: int) -> None:
    """Send the rest, once that may be sent, and see the answer."""
    await client.until(lambda: client.seen(stream).credit >= len(REST))
    answer = await client.ask(f.body(stream, REST, size=MIB), stream=stream)
    assert (answer.status, len(answer.messages[0])) == (0, len(LARGE) - 5)


async def test_a_large_request_is_refused_before_it_has_come(host: "Host") -> None:
    door = Door()
    door.is_open.set()
    await host.serve(check=door.check)
    client = await host.dial(f.wide())
    await client.send(f.headers(1), f.data(1, LARGE[:MIB]))
    answer = await client.answer(1)
    assert (answer.status, answer.trailers["why"]) == (16, "no")
    assert host.ended() == [("Echo", "UNAUTHENTICATED")]
    assert not host.probe.metadata
    # Whoever is refused costs its connection nothing, and small requests are their handlers'.
    assert await client.goes_on()
    assert door.num_asked == 1
    await client.send(begun(5, ("pass", "yes")))
    await finish(client, 5)
    assert host.ended() == [("Echo", "UNAUTHENTICATED")]


async def test_no_more_is_taken_than_a_window_while_a_call_is_checked(host: "Host") -> None:
    door = Door()
    await host.serve(check=door.check)
    client = await host.dial(f.wide())
    await client.send(begun(1, ("pass", "yes")))
    await client.settled()
    assert client.seen(1).credit == 0
    door.is_open.set()
    await finish(client, 1)


async def test_a_stream_has_no_room_before_its_handler_reads(host: "Host") -> None:
    """By then it has found out who calls, which may take as long as an issuer's keys do."""
    door = Door()

    async def guarded(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await door.check("it", context)
        async for body in requests:
            yield body

    method = grpc.stream_stream_rpc_method_handler(guarded)
    await host.serve(Limits(max_upload_bytes=1), {"Guarded": method}, check=door.check)
    client, other = await host.dial(f.wide()), await host.dial(f.wide())
    fields = [
        (name, "/test.More/Guarded" if name == ":path" else value)
        for name, value in f.request_fields(more=[("pass", "yes")])
    ]
    await client.send(f.headers(1, fields), f.body(1, FIRST, is_last=False, size=MIB))
    await client.settled()
    assert client.seen(1).credit == 0
    assert is_empty(host)
    # Nor has anybody who asks meanwhile to wait for it.
    door.is_open.set()
    await finish(client, 1)
    await other.send(begun(1, ("pass", "yes")))
    await finish(other, 1)


async def test_what_was_not_checked_is_not_unpacked(
    host: "Host", monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> bytes:
        raise AssertionError("it was unpacked")

    monkeypatch.setattr("services.grpc_server.request.upload.decompressed", never)
    door = Door()
    await host.serve(check=door.check)
    client = await host.dial(f.wide())
    packed = f.message(gzip.compress(bytes(MIB)), flag=1)
    await client.send(f.headers(1, f.request_fields("Echo", GZIP)) + f.body(1, packed))
    await client.settled()
    door.is_open.set()
    assert (await client.answer(1)).status == 16
    assert host.ended() == [("Echo", "UNAUTHENTICATED")]


async def test_a_client_that_leaves_while_it_is_checked(host: "Host") -> None:
    door = Door()
    await host.serve(check=door.check)
    client = await host.dial(f.wide())
    await client.send(begun(1))
    await client.settled()
    await client.send(f.rst_stream(1))
    await client.settled()
    door.is_open.set()
    assert await client.goes_on()
    assert host.ended() == [("Echo", "CANCELLED")]


async def test_a_bomb_is_unpacked_no_further_than_the_limit(host: "Host") -> None:
    await host.serve(Limits(max_decompressed_bytes=MIB))
    client = await host.dial(f.wide())
    head = f.request_fields("Echo", GZIP)
    for stream, size, status in ((1, MIB + 1, 8), (3, MIB, 0)):
        packed = f.message(gzip.compress(bytes(size)), flag=1)
        answer = await client.ask(f.headers(stream, head) + f.body(stream, packed), stream=stream)
        assert answer.status == status
    assert (
        "1048576 bytes, the limit of decompressed requests"
        in client.seen(1).trailers["grpc-message"]
    )
    assert host.ended() == [("Echo", "RESOURCE_EXHAUSTED")]


async def test_messages_of_a_stream_keep_their_order_though_some_are_unpacked(
    host: "Host",
) -> None:
    await host.serve()
    client = await host.dial(f.wide())
    sizes = [3 * MIB, 1, 2 * MIB, 10, 70_000]
    sent = b"".join(f.message(gzip.compress(bytes(size)), flag=1) for size in sizes)
    head = f.headers(1, f.request_fields("Gated", GZIP))
    host.probe.gate.set()
    answer = await client.ask(head + f.body(1, sent))
    assert [int(message) for message in answer.messages] == sizes


async def test_methods_without_tensors_take_small_requests(host: "Host") -> None:
    await host.serve(Limits(large_paths=frozenset({"/test.Probe/Echo"})))
    client = await host.dial(f.wide())
    announced = f.message(bytes(SMALL_BYTES + 1))[:5]
    for stream, method in ((1, "Blow"), (3, "Chat")):
        head = f.headers(stream, f.request_fields(method))
        answer = await client.ask(head + f.body(stream, announced, is_last=False), stream=stream)
        assert answer.status == 8
    await client.send(begun(5))
    await finish(client, 5)


async def test_large_requests_wait_for_room_and_small_ones_do_not(host: "Host") -> None:
    await host.serve(Limits(max_upload_bytes=2 * len(LARGE)))
    clients = [await host.dial(f.wide()) for _ in range(4)]
    for client in clients:
        await client.send(begun(1))
        await client.settled()
    assert [client.seen(1).credit > 0 for client in clients] == [True, True, False, False]
    assert await clients[2].goes_on()
    await finish(clients[1], 1)
    await clients[2].until(lambda: clients[2].seen(1).credit > 0)
    # One that leaves makes room as well, and so does one that is given up while it waits.
    clients[3].close()
    clients[0].close()
    late = await host.dial(f.wide())
    await late.send(begun(1))
    await finish(late, 1)
    await finish(clients[2], 1)


async def test_a_request_keeps_its_room_until_it_is_answered(host: "Host") -> None:
    await host.serve(Limits(max_upload_bytes=len(LARGE)))
    client = await host.dial(f.wide())
    await client.send(begun(1, method="Hold"))
    await client.until(lambda: client.seen(1).credit > 0)
    await client.send(f.body(1, REST, size=MIB))
    await soon(host.probe.began.get())
    await client.send(begun(3))
    await client.settled()
    assert client.seen(3).credit == 0
    host.probe.gate.set()
    assert (await client.answer(1)).status == 0
    await finish(client, 3)


async def test_one_larger_than_all_room_comes_alone_and_a_stream_gives_it_back_with_each(
    host: "Host",
) -> None:
    await host.serve(Limits(max_upload_bytes=1))
    host.probe.gate.set()
    client, other = await host.dial(f.wide()), await host.dial(f.wide())
    await client.send(begun(1, method="Gated"))
    await client.until(lambda: client.seen(1).credit >= len(REST))
    await other.send(begun(1))
    await other.settled()
    assert other.seen(1).credit == 0
    # The stream's message is taken; its next one waits for the other call.
    await client.send(f.body(1, REST, is_last=False, size=MIB))
    await client.until(lambda: len(client.seen(1).messages) == 1)
    await other.until(lambda: other.seen(1).credit > 0)
    credit = client.seen(1).credit
    await client.send(f.body(1, FIRST, is_last=False, size=MIB))
    await client.settled()
    assert client.seen(1).credit - credit < len(LARGE)
    await finish(other, 1)
    await client.until(lambda: client.seen(1).credit >= 2 * len(LARGE) - STREAM_WINDOW)
    answer = await client.ask(f.body(1, REST, size=MIB))
    assert answer.messages == [b"%d" % (len(LARGE) - 5)] * 2


async def test_a_client_that_stands_still_is_not_waited_for(host: "Host") -> None:
    await host.serve(Limits(max_upload_bytes=1, stall_timeout_s=0.05))
    idle, busy = await host.dial(f.wide()), await host.dial(f.wide())
    await idle.send(begun(1))
    await idle.settled()
    await busy.send(begun(1))
    answer = await idle.answer(1)
    assert (answer.status, "too slowly" in answer.trailers["grpc-message"]) == (8, True)
    await finish(busy, 1)
    assert host.ended() == [("Echo", "RESOURCE_EXHAUSTED")]


@pytest.mark.parametrize("method", ["Hold", "Gated"])
async def test_a_client_that_has_sent_all_is_waited_for(host: "Host", method: str) -> None:
    await host.serve(Limits(max_upload_bytes=1))
    client, other = await host.dial(f.wide()), await host.dial(f.wide())
    await client.send(begun(1, method=method))
    await client.until(lambda: client.seen(1).credit >= len(REST))
    await client.send(f.body(1, REST, size=MIB))
    await soon(host.probe.began.get())
    await other.send(begun(1))
    await other.settled()
    for _ in range(3):
        host.server.check_progress()
    await client.settled()
    assert not client.seen(1).is_ended
    host.probe.gate.set()
    assert (await client.answer(1)).status == 0
    await finish(other, 1)


@pytest.mark.parametrize(
    ("method", "more", "sent", "code"),
    [
        ("Echo", [], f.message(b"x" * 2000)[:5], "RESOURCE_EXHAUSTED"),
        ("Chat", [], f.message(b"x" * 2000)[:5], "RESOURCE_EXHAUSTED"),
        ("Echo", GZIP, f.message(b"plain", flag=1), "INTERNAL"),
        ("Echo", [], f.message(b"x" * 100)[:50], "INTERNAL"),
        ("Size", [], f.message(b"1001"), "RESOURCE_EXHAUSTED"),
        ("Fail", [], f.message(b"x"), "UNKNOWN"),
    ],
    ids=["too large", "too large in a stream", "not gzip", "cut off", "answer", "fault"],
)
async def test_what_a_handler_does_not_know_of_is_told(
    host: "Host", method: str, more: f.Fields, sent: bytes, code: str
) -> None:
    await host.serve(Limits(max_message_bytes=1000))
    client = await host.dial()
    answer = await client.ask(f.headers(1, f.request_fields(method, more)) + f.body(1, sent))
    assert answer.status == grpc.StatusCode[code].value[0]
    assert host.ended() == [(method, code)]
    assert host.unhandled[0].peer.startswith("ipv4:127.0.0.1:")


@pytest.mark.parametrize("end", ["deadline", "reset", "stop", "lost"])
async def test_how_a_request_ends_that_never_was_whole_is_told(host: "Host", end: str) -> None:
    await host.serve()
    client, other = await host.dial(), await host.dial()
    timeout = [("grpc-timeout", "50m")] if end == "deadline" else []
    await client.send(f.headers(1, f.request_fields("Echo", timeout)), f.data(1, FIRST[:100]))
    await client.settled()
    if end == "reset":
        await client.send(f.rst_stream(1))
    elif end == "lost":
        client.close()
    elif end == "stop":
        await host.server.stop(0)
    async with asyncio.timeout(30):
        while not host.unhandled:
            await other.ping()
    code = {"deadline": "DEADLINE_EXCEEDED", "stop": "UNAVAILABLE"}.get(end, "CANCELLED")
    assert host.ended() == [("Echo", code)]


async def test_what_handlers_know_of_is_theirs_alone(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    for stream, method in ((1, "Echo"), (3, "Refuse"), (5, "Chat"), (7, "Nothing")):
        await client.ask(f.call(stream, method, b"x"), stream=stream)
    await client.send(f.call(9, "Hold"))
    await soon(host.probe.began.get())
    await client.send(f.rst_stream(9))
    assert await soon(host.probe.ended.get()) == "cancelled"
    assert not host.unhandled
