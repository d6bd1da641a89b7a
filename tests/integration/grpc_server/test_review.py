"""What a client could make this server keep, and what slow and late clients may count on."""

import asyncio
import contextlib
import gc
import gzip
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from h2.errors import ErrorCodes as Error

from services.grpc_server.http2.connection import Connection
from services.grpc_server.limits import Limits
from tests.certificates import Authority
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import LIMIT_S, soon
from tests.integration.grpc_server.raw_client import RawClient

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

UNKNOWN, TOO_LARGE, UNIMPLEMENTED, INTERNAL = 2, 8, 12, 13
MANY = 200


def more_fields(method: str) -> f.Fields:
    """The header fields of a call of a method that a test adds."""
    path = f"/test.More/{method}"
    return [(name, path if name == ":path" else value) for name, value in f.request_fields()]


# A guard that forgives little, and nothing with time.
STRICT = Limits(free_frames=MANY // 4, free_frames_per_second=0)


@pytest.mark.parametrize("second", [f.message(b"two"), f.message(bytes(99_999))[:7], b"\x00"])
@pytest.mark.parametrize("first", [b"one", bytes(100_000)], ids=len)
async def test_a_second_message_ends_a_unary_call_at_once(
    host: "Host", first: bytes, second: bytes
) -> None:
    """A client that never ends its request would have the server keep all that it sends."""
    await host.serve()
    client = await host.dial()
    await client.send(f.headers(1), f.body(1, f.message(first), is_last=False))
    answer = await client.ask(f.data(1, second))
    assert (answer.status, host.probe.metadata) == (INTERNAL, [])
    assert await client.goes_on()


async def test_a_corrupt_message_is_told_behind_the_answers_to_those_before(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    fields = f.request_fields("Chat", [("grpc-encoding", "gzip")])
    whole, corrupt = f.message(gzip.compress(b"good"), flag=1), f.message(b"bad", flag=1)
    answer = await client.ask(f.headers(1, fields), f.data(1, whole + corrupt))
    assert (answer.messages, answer.status) == ([b"good"], INTERNAL)


async def test_an_answer_that_is_too_large_ends_the_handler_of_a_stream(host: "Host") -> None:
    ended = asyncio.Event()

    async def grow(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        try:
            async for size in requests:
                yield bytes(int(size))
        finally:
            ended.set()

    handler = grpc.stream_stream_rpc_method_handler(grow)
    await host.serve(Limits(max_message_bytes=1000), {"Grow": handler})
    client = await host.dial()
    fields = more_fields("Grow")
    sizes = f.message(b"10") + f.message(b"1001")
    answer = await client.ask(f.headers(1, fields), f.data(1, sizes))
    assert (answer.messages, answer.status) == ([bytes(10)], TOO_LARGE)
    await soon(ended.wait())


@pytest.mark.parametrize("size", [1, 100_000])
async def test_a_handler_that_gives_no_bytes_is_told_so(host: "Host", size: int) -> None:
    """And its client does not wait for ever."""

    async def wrong(_: bytes, __: Any) -> Any:
        return "x" * size

    await host.serve(methods={"Wrong": grpc.unary_unary_rpc_method_handler(wrong)})
    client = await host.dial()
    fields = more_fields("Wrong")
    answer = await client.ask(f.headers(1, fields), f.body(1, f.message(b"")))
    assert answer.status == UNKNOWN
    assert await client.goes_on()


async def test_each_answer_of_a_stream_may_be_followed_by_frames(host: "Host") -> None:
    """Clients measure their connection by a PING with each message, and grant little by little."""
    await host.serve(STRICT)
    client = await host.dial()
    await client.send(f.headers(1, f.request_fields("Chat")))
    for number in range(1, MANY + 1):
        await client.send(f.data(1, f.message(b"x")))
        await client.until(lambda number=number: len(client.seen(1).messages) == number)  # type: ignore[misc]
        await client.send(f.window_update(0, 6), f.window_update(1, 6))
        await client.ping()
    assert await client.goes_on()


@pytest.mark.parametrize(("patience", "is_flood"), [("1n", False), ("1H", True)])
async def test_calls_that_are_late_may_be_reset(
    host: "Host", patience: str, is_flood: bool
) -> None:
    """In an overload a client resets every call, thousands a second, as their time is over."""
    await host.serve(STRICT)
    client = await host.dial()
    for stream in range(1, 2 * MANY, 2):
        call = f.call(stream, "Hold", grpc_timeout=patience)
        await client.send(call, f.rst_stream(stream))
    if is_flood:
        assert await client.goaway() == Error.ENHANCE_YOUR_CALM
    else:
        assert await client.goes_on(2 * MANY + 1)


async def test_trailers_that_cross_a_reset_are_no_fault(host: "Host") -> None:
    """Of a proxy's connection all other users' calls would be lost."""
    await host.serve()
    client = await host.dial()
    trailers = f.headers(1, [("a", "b")], is_last=True)
    await client.send(f.headers(1, f.request_fields("Nothing")), f.data(1, b""), trailers)
    assert (await client.answer(1)).status == UNIMPLEMENTED
    assert await client.goes_on()


async def test_a_handler_that_is_late_has_no_time_left(host: "Host") -> None:
    """Event loops wake up to a millisecond early; the gateway counts such calls as cancelled."""
    left_s: asyncio.Queue[float | None] = asyncio.Queue()
    num_begun = 0

    async def wait(_: bytes, context: Any) -> bytes:
        nonlocal num_begun
        num_begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            left_s.put_nowait(context.time_remaining())
        return b""

    await host.serve(methods={"Wait": grpc.unary_unary_rpc_method_handler(wait)})
    client = await host.dial()
    fields = more_fields("Wait")
    streams_ = range(1, 121, 2)
    for stream in streams_:
        head = f.headers(stream, [*fields, ("grpc-timeout", f"{10_000 + stream * 370}u")])
        await client.send(head, f.body(stream, f.message(b"")))
    for stream in streams_:
        await client.answer(stream)
    # On a slow machine some are late before their handlers begin.
    assert [await soon(left_s.get()) for _ in range(num_begun)] == [0.0] * num_begun


class LookedAt:
    """A transport with all that it has, which counts how often it is asked what it still holds.

    Attributes:
        was_looked_at: three times.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self.was_looked_at = asyncio.Event()
        self._transport, self._num_looks, self._is_ended = transport, 0, False

    def write_eof(self) -> None:
        """From here on it is looked at until it holds nothing."""
        self._is_ended = True
        self._transport.write_eof()

    def get_write_buffer_size(self) -> int:
        """Counts, once it is closing: a client that does not read is looked at before, too."""
        self._num_looks += self._is_ended
        if self._num_looks == 3:
            self.was_looked_at.set()
        return self._transport.get_write_buffer_size()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_an_answer_to_a_slow_reader_outlives_a_stop(
    host: "Host", monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was answered within the grace arrives, though the transport still holds it."""
    served: list[LookedAt] = []
    made = Connection.connection_made

    def watched(self: Connection, transport: asyncio.Transport) -> None:
        served.append(LookedAt(transport))
        made(self, served[-1])  # type: ignore[arg-type] # it is used like one

    monkeypatch.setattr(Connection, "connection_made", watched)
    await host.serve(Limits(linger_s=0.02, drain_timeout_s=0.02))
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", host.port))
    client = RawClient(sock)
    try:
        await client.send(f.wide())
        await client.settled()
        (transport,) = served
        held = transport.get_extra_info("socket")
        held.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        await client.send(f.call(1, "Size", b"900000"))
        stopping = asyncio.create_task(host.server.stop(LIMIT_S))
        await soon(transport.was_looked_at.wait())
        answer = await client.answer(1)
        assert (len(answer.messages[0]), answer.status) == (900_000, 0)
    finally:
        client.close()
    await soon(stopping)


async def dial_tls(port: int, authority: Authority) -> Any:
    """A connection with TLS that has sent its first bytes."""
    trust = ssl.create_default_context(cafile=str(authority.cert))
    trust.check_hostname = False
    trust.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, limit=1 << 20)
    writer.write(f.greeting())
    return reader, writer


async def _gone(writer: Any) -> None:
    """End a connection with TLS at once: uvloop refuses to close a loop that still has one."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await soon(writer.wait_closed())


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "TLS"])
async def test_a_connection_that_waits_for_its_turn_loses_nothing(
    host: "Host", tmp_path: Path, *, is_secure: bool
) -> None:
    """So many frames take far longer than a turn, and come in one read or few."""
    num_pings = 9000
    pings = [f.frame(f.PING, payload=n.to_bytes(8, "big")) for n in range(num_pings)]
    if not is_secure:
        await host.serve()
        client = await host.dial()
        sending = asyncio.create_task(client.send(*pings))
        await client.until(lambda: len(client.pongs) == num_pings)
        await sending
        assert client.pongs == [ping[9:] for ping in pings]
        return
    authority = Authority(tmp_path)
    await host.serve(tls=host.tls(authority.sign("server")))
    reader, writer = await dial_tls(host.port, authority)
    writer.write(b"".join(pings))
    pongs = b"".join(f.frame(f.PING, f.ACK, payload=ping[9:]) for ping in pings)
    assert (await soon(reader.readuntil(pongs[-17:]))).endswith(pongs)
    await _gone(writer)


async def test_a_handshake_that_ends_after_a_stop(host: "Host", tmp_path: Path) -> None:
    """Its connection is told to go, like those that were there in time."""
    authority = Authority(tmp_path)
    await host.serve(Limits(drain_timeout_s=0.02), tls=host.tls(authority.sign("server")))
    trust = ssl.create_default_context(cafile=str(authority.cert))
    trust.check_hostname = False
    late = socket.create_connection(("127.0.0.1", host.port), LIMIT_S)
    # Connections are taken in their order: when this one is served, the other is waited for.
    reader, writer = await dial_tls(host.port, authority)
    await soon(reader.readexactly(9))
    await _gone(writer)
    await soon(host.server.stop(LIMIT_S))
    reader, writer = await asyncio.open_connection(sock=late, ssl=trust, server_hostname="here")
    writer.write(f.greeting())
    said = await soon(reader.read())
    goaway = f.frame(f.GOAWAY, payload=(0).to_bytes(8, "big"))
    assert goaway in said
    assert said[3] == f.SETTINGS  # first of all
    await _gone(writer)


async def test_connections_that_are_over_keep_no_buffers(host: "Host") -> None:
    """They are cycles, and a process that serves collects those late."""
    await host.serve()
    gc.disable()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            client = await host.dial()
            await client.ping()
            client.close()
        await soon(host.server.stop(LIMIT_S))
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        gc.enable()
    assert kept < 20 * 65_536
