"""Opening and losing connections, and peers that misbehave."""

import asyncio
import struct

import pytest

from services.contracts.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    UnsupportedFeatureError,
)
from services.contracts.transport.frames import (
    HEADER,
    Frame,
    InferFrame,
    Kind,
    decode_error,
    encode_hello,
    encode_infer,
    header,
)
from services.replica.closing import stop_accepting
from services.replica.transport.data_server import GatewayConnection

TOKEN = bytes(range(32))


def wire(kind: Kind, request_id: int, meta: bytes = b"", payload: bytes = b"") -> bytes:
    """One frame's bytes."""
    return header(kind, request_id, len(meta), len(payload)) + meta + payload


HELLO = wire(Kind.HELLO, 0, encode_hello())
INFER_META = encode_infer(InferFrame(b""))


async def _refusal(peer) -> str:
    """Why the data port closed the connection; HELLO may come first."""
    frames: list[Frame] = []
    while frame := await asyncio.wait_for(peer.read_frame(), 30):
        frames.append(frame)
    assert frames[-1].kind is Kind.ERROR
    assert frames[-1].request_id == 0
    return str(decode_error(frames[-1]))


async def test_a_request_that_arrives_byte_by_byte_is_answered(port) -> None:
    peer = await port.dial_raw(await port.serve())
    for byte in HELLO + wire(Kind.INFER, 9, INFER_META, b"payload"):
        peer.writer.write(bytes([byte]))
        await peer.writer.drain()
        await asyncio.sleep(0)
    hello, answer = await peer.read_frame(), await peer.read_frame()
    assert hello.kind is Kind.HELLO
    assert answer == Frame(Kind.OK, 9, b"", b"payload")


async def test_many_requests_in_one_write_are_answered(port) -> None:
    peer = await port.dial_raw(await port.serve())
    requests = [wire(Kind.INFER, n, INFER_META, b"%d" % n) for n in range(1, 1001)]
    peer.writer.write(HELLO + b"".join(requests))
    await peer.read_frame()
    answers = {(await peer.read_frame()) for _ in requests}
    assert answers == {Frame(Kind.OK, n, b"", b"%d" % n) for n in range(1, 1001)}


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "bytes are not a frame"),
        (wire(Kind.INFER, 1, INFER_META), "the first frame is INFER"),
        (header(Kind.HELLO, 0, 38, 5000), "at most 4096"),
        (HELLO + header(Kind.INFER, 1, 0, 1001), "1001 bytes of payload, at most 1000"),
        (HELLO + bytes(HEADER.size), "bytes are not a frame"),
        (HELLO + wire(Kind.OK, 1), "OK is not accepted from this peer"),
        (HELLO + wire(Kind.INFER, 0, INFER_META), "request id 0 is in use"),
        (HELLO + HELLO, "HELLO is not accepted from this peer"),
    ],
)
async def test_a_peer_that_misbehaves_is_told_and_closed(
    port, monkeypatch: pytest.MonkeyPatch, sent: bytes, reason: str
) -> None:
    """And nobody else suffers."""
    monkeypatch.setattr(GatewayConnection, "max_payload_bytes", 1000)
    address = await port.serve()
    other = await port.connect(address)
    peer = await port.dial_raw(address)
    peer.writer.write(sent)
    assert reason in await _refusal(peer)
    assert await other.infer(b"still here") == b"still here"


async def test_an_id_in_use_is_refused(port) -> None:
    async def hang(frame: InferFrame) -> bytes:
        await asyncio.Event().wait()
        return b""

    peer = await port.dial_raw(await port.serve(hang))
    peer.writer.write(HELLO + wire(Kind.INFER, 1, INFER_META) * 2)
    assert "request id 1 is in use" in await _refusal(peer)


async def test_a_broken_request_is_answered_with_an_error_of_its_own(port) -> None:
    peer = await port.dial_raw(await port.serve())
    peer.writer.write(HELLO + wire(Kind.INFER, 4, b"\xff") + wire(Kind.PING, 5))
    frames = [await peer.read_frame() for _ in range(3)]
    by_id = {frame.request_id: frame for frame in frames[1:]}
    assert isinstance(decode_error(by_id[4]), InvalidRequestError)
    assert by_id[5].kind is Kind.PONG


async def test_only_the_right_token_is_taken(port) -> None:
    address = await port.serve(token=TOKEN)
    connection = await port.connect(address, token=TOKEN)
    assert await connection.infer(b"x") == b"x"
    for wrong in ({}, {"token": bytes(32)}, {"token": TOKEN[::-1]}):
        # Connecting fails: one that is open may be given requests at once.
        with pytest.raises(ConnectionLostError, match="wrong replica token"):
            await port.connect(address, **wrong)


async def test_a_peer_that_says_nothing_is_given_up(port) -> None:
    address = await port.serve()
    connection = await port.connect(address)
    # Who has said HELLO in time is not asked for it again.
    port.server.greeting_timeout_s = 0.05
    silent = await port.dial_raw(address)
    assert await asyncio.wait_for(silent.read_frame(), 30) is None
    assert await connection.infer(b"still here") == b"still here"


async def test_another_protocol_version_is_named(port) -> None:
    meta = struct.pack("!4sH32s", b"SMLT", 9, bytes(32))
    async with _raw_server(wire(Kind.HELLO, 0, meta)) as address:
        with pytest.raises(ConnectionLostError, match="frame protocol 9") as caught:
            await port.connect(address)
    assert not caught.value.may_have_run
    assert isinstance(caught.value.__cause__, UnsupportedFeatureError)


async def test_a_server_that_says_nothing_is_given_up(port) -> None:
    async with _raw_server(b"") as address:
        with pytest.raises(ConnectionLostError, match=r"nothing was received within 0\.05 s"):
            await port.connect(address, timeout_s=0.05)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "unix:/nonexistent/x.sock"])
async def test_nobody_there(port, address: str) -> None:
    with pytest.raises(ConnectionLostError, match=f"no connection to replica at {address}"):
        await port.connect(address)


@pytest.mark.parametrize("address", ["", "host", "host:x", ":80", "h:99999", "unix:a", "unix:"])
async def test_a_malformed_address_is_refused(port, address: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"wanted (host:port or )?unix:"):
        await port.connect(address)


async def test_a_port_in_use_is_refused(port) -> None:
    address = await port.serve()
    with pytest.raises(InvalidRequestError, match=f"cannot listen on {address}"):
        await port.server.listen(address)


async def test_garbage_from_a_replica_fails_what_waits_for_it(port) -> None:
    async with _raw_server(HELLO, then=b"\xff" * 64) as address:
        connection = await port.connect(address)
        with pytest.raises(ConnectionLostError, match="bytes are not a frame") as caught:
            await connection.infer(b"x")
    assert caught.value.may_have_run
    assert not connection.is_open


async def test_a_lost_connection_fails_each_request_by_what_it_may_have_done(port) -> None:
    """Requests beyond what the peer takes wait unsent, and are safe to send elsewhere."""
    async with _raw_server(HELLO, is_reading=False) as address:
        connection = await port.connect(address)
        tasks = [asyncio.create_task(connection.infer(bytes(1_000_000))) for _ in range(60)]
        for _ in range(50):
            await asyncio.sleep(0)
        num_sent = connection.num_in_flight
        connection.abort()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert 0 < num_sent < len(tasks)
    assert all(isinstance(error, ConnectionLostError) for error in errors)
    assert sum(error.may_have_run for error in errors) == num_sent
    with pytest.raises(ConnectionLostError) as caught:
        await connection.infer(b"late")
    assert not caught.value.may_have_run
    await asyncio.wait_for(connection.wait_lost(), 30)


async def test_a_gateway_that_does_not_read_is_not_read_from(port, monkeypatch) -> None:
    """Answers wait at the replica within a bound, and all arrive once they are read."""
    calls, paused = [], asyncio.Event()
    pause = GatewayConnection.pause_writing
    monkeypatch.setattr(
        GatewayConnection, "pause_writing", lambda self: (pause(self), paused.set())
    )

    async def large(frame: InferFrame) -> bytes:
        calls.append(frame)
        return bytes(1_000_000)

    peer = await port.dial_raw(await port.serve(large))
    # Requests larger than one read, so that the data port has to come back for more.
    request = wire(Kind.INFER, 0, INFER_META, bytes(300_000))
    peer.writer.write(HELLO)
    for number in range(1, 101):
        head = header(Kind.INFER, number, len(INFER_META), 300_000)
        peer.writer.write(head + request[HEADER.size :])
    await asyncio.wait_for(paused.wait(), 30)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(calls) < 100
    await peer.read_frame()
    sizes = [len((await peer.read_frame()).payload) for _ in range(100)]
    assert sizes == [1_000_000] * 100


class _raw_server:  # noqa: N801 - reads as a function
    """A peer that sends fixed bytes on connect, more after the first read, and never answers."""

    def __init__(self, first: bytes, *, then: bytes = b"", is_reading: bool = True) -> None:
        self._first, self._then, self._is_reading = first, then, is_reading
        self._over = asyncio.Event()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await stop_accepting(self._server)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(self._first)
            if not self._is_reading:
                writer.transport.pause_reading()
            else:
                await reader.readexactly(len(HELLO) + 1)
                writer.write(self._then)
            await self._over.wait()
        except asyncio.IncompleteReadError:
            pass  # The other side gave up.
        finally:
            # Before Python 3.11.6 nobody else does, where reading failed.
            writer.transport.abort()


async def _slow_replica(port, transports, num_requests: int):
    """A connection whose replica does not read yet, with requests sent and requests waiting."""
    connection = await port.connect(await port.serve())
    await connection.ping()
    replica = transports[GatewayConnection]
    replica.pause_reading()
    requests = [bytes([number]) * 1_000_000 for number in range(num_requests)]
    tasks = [asyncio.create_task(connection.infer(request)) for request in requests]
    for _ in range(50):
        await asyncio.sleep(0)
    assert 0 < connection.num_in_flight < num_requests
    return connection, replica, tasks, requests


async def test_requests_that_wait_for_a_slow_replica_are_all_sent_once_it_reads(
    port, transports
) -> None:
    """Also when some give up while they wait: each turn is handed on."""
    connection, replica, tasks, requests = await _slow_replica(port, transports, 60)
    given_up = range(connection.num_in_flight, 60, 3)
    for number in given_up:
        tasks[number].cancel()
    replica.resume_reading()
    answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    for number, answer in enumerate(answers):
        if number in given_up:
            assert isinstance(answer, asyncio.CancelledError)
        else:
            assert answer == requests[number]


async def test_a_deadline_that_passes_unsent_leaves_the_connection_sound(port, transports) -> None:
    connection, replica, tasks, requests = await _slow_replica(port, transports, 20)
    num_sent = connection.num_in_flight
    with pytest.raises(DeadlineExceededError):
        await connection.infer(b"late", timeout_s=0.05)
    assert connection.num_in_flight == num_sent
    replica.resume_reading()
    assert await asyncio.wait_for(asyncio.gather(*tasks), 60) == requests


async def test_a_writer_that_gives_up_in_its_turn_hands_it_on(port) -> None:
    connection = await port.connect(await port.serve())
    connection.pause_writing()
    tasks = [asyncio.create_task(connection.infer(b"%d" % number)) for number in range(3)]
    await asyncio.sleep(0)
    connection.resume_writing()
    tasks[0].cancel()
    assert await asyncio.wait_for(asyncio.gather(*tasks[1:]), 30) == [b"1", b"2"]
