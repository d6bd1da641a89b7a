"""Requests on one connection: answers, errors, cancellation, deadlines, draining."""

import asyncio
import socket
from pathlib import Path

import pytest

from services.contracts.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
    SmeltError,
)
from services.contracts.transport.busy_poll import BusyPoll
from services.contracts.transport.frames import InferFrame
from services.gateway.upstream.replica_connection import ReplicaConnection
from services.replica.transport.data_server import GatewayConnection

SIZES = [0, 1, 2_000, 65_535, 65_536, 602_112, 3_000_000]


@pytest.mark.parametrize("family", ["tcp", "unix"])
async def test_requests_of_any_size_are_answered(port, family: str) -> None:
    connection = await port.connect(await port.serve(family=family))
    for size in SIZES:
        request = bytes(range(256)) * (size // 256 + 1)
        answer = await connection.infer(request[:size])
        assert answer == request[:size]


async def test_what_the_gateway_says_reaches_the_handler(port) -> None:
    frames = []

    async def keep(frame: InferFrame) -> bytes:
        frames.append(frame)
        return b""

    connection = await port.connect(await port.serve(keep))
    await connection.infer(b"x", 30.0, trace="t-1")
    await connection.infer(b"y")
    assert frames == [
        InferFrame(b"x", 30.0, "t-1"),
        InferFrame(b"y"),
    ]


async def test_answers_come_in_the_order_they_are_ready(port) -> None:
    gates = [asyncio.Event() for _ in range(100)]

    async def wait(frame: InferFrame) -> bytes:
        await gates[int(frame.request)].wait()
        return bytes(frame.request)

    connection = await port.connect(await port.serve(wait))
    tasks = [asyncio.create_task(connection.infer(b"%d" % n)) for n in range(len(gates))]
    for number in reversed(range(len(gates))):
        gates[number].set()
        assert await tasks[number] == b"%d" % number
    assert connection.num_in_flight == 0


@pytest.mark.parametrize("family", ["tcp", "unix"])
async def test_small_and_large_requests_mix(port, family: str) -> None:
    connection = await port.connect(await port.serve(family=family))
    requests = [bytes([n]) * (700_000 if n % 7 == 0 else 50 * n) for n in range(120)]
    answers = await asyncio.gather(*map(connection.infer, requests))
    assert answers == requests


async def test_statistics_and_ping(port) -> None:
    connection = await port.connect(await port.serve())
    assert (await connection.statistics()).inference_count == 3
    await connection.ping()


async def test_an_error_keeps_its_class_and_words(port) -> None:
    async def refuse(frame: InferFrame) -> bytes:
        raise OverloadedError("queue of 'm' is full", retry_after_s=0.25)

    connection = await port.connect(await port.serve(refuse))
    with pytest.raises(OverloadedError, match="queue of 'm' is full") as caught:
        await connection.infer(b"")
    assert caught.value.retry_after_s == 0.25


async def test_an_unforeseen_failure_does_not_leak_its_text(port, caplog) -> None:
    async def fail(frame: InferFrame) -> bytes:
        raise KeyError("secret")

    connection = await port.connect(await port.serve(fail))
    with pytest.raises(SmeltError) as caught:
        await connection.infer(b"")
    assert type(caught.value) is SmeltError
    assert "secret" not in str(caught.value)
    assert "secret" in caplog.text


class Hanging:
    """A handler that never answers, and says what becomes of its requests."""

    def __init__(self) -> None:
        self.started, self.cancelled = asyncio.Event(), asyncio.Event()

    async def __call__(self, frame: InferFrame) -> bytes:
        """Waits for ever, unless the request is `quick`."""
        if frame.request == b"quick":
            return b"done"
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b""


async def test_cancelling_a_request_cancels_its_handler(port) -> None:
    handler = Hanging()
    connection = await port.connect(await port.serve(handler))
    task = asyncio.create_task(connection.infer(b""))
    await handler.started.wait()
    task.cancel()
    await asyncio.wait_for(handler.cancelled.wait(), 30)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await connection.infer(b"quick") == b"done"
    assert connection.num_in_flight == 0


async def test_a_request_cancelled_before_its_handler_starts_leaves_no_trace(port) -> None:
    handler = Hanging()
    connection = await port.connect(await port.serve(handler))
    task = asyncio.create_task(connection.infer(b""))
    await asyncio.sleep(0)
    task.cancel()  # INFER and CANCEL now arrive in one read
    await asyncio.gather(task, return_exceptions=True)
    await connection.ping()
    assert await connection.infer(b"quick") == b"done"
    (gateway,) = port.server.connections
    assert gateway.answers == {}


async def test_a_deadline_ends_the_request_on_both_sides(port) -> None:
    handler = Hanging()
    connection = await port.connect(await port.serve(handler))
    with pytest.raises(DeadlineExceededError, match="^no answer .* the 50 ms that were left"):
        await connection.infer(b"", timeout_s=0.05)
    if not handler.started.is_set():  # a slow machine hands it on and cancels it at once
        with pytest.raises(DeadlineExceededError):
            await connection.infer(b"", timeout_s=5.0)
    await asyncio.wait_for(handler.cancelled.wait(), 30)


async def test_a_passed_deadline_is_not_sent(port) -> None:
    handler = Hanging()
    connection = await port.connect(await port.serve(handler))
    with pytest.raises(DeadlineExceededError, match="before the request was sent"):
        await connection.infer(b"", timeout_s=0.0)
    await connection.ping()
    assert not handler.started.is_set()


async def test_a_gateway_that_leaves_cancels_its_requests(port) -> None:
    handler = Hanging()
    connection = await port.connect(await port.serve(handler))
    task = asyncio.create_task(connection.infer(b""))
    await handler.started.wait()
    connection.abort()
    await asyncio.wait_for(handler.cancelled.wait(), 30)
    with pytest.raises(ConnectionLostError):
        await task


async def test_draining_answers_what_is_in_flight_and_refuses_the_rest(port) -> None:
    release = asyncio.Event()
    started = asyncio.Event()

    async def wait(frame: InferFrame) -> bytes:
        started.set()
        await release.wait()
        return b"done"

    address = await port.serve(wait, family="unix")
    connection = await port.connect(address)
    first = asyncio.create_task(connection.infer(b"1"))
    await started.wait()
    closing = asyncio.create_task(port.server.close(grace_s=30))
    await asyncio.sleep(0)
    with pytest.raises(NotReadyError, match="draining") as caught:
        await connection.infer(b"2")
    assert not isinstance(caught.value, ConnectionLostError)
    release.set()
    assert await first == b"done"
    await closing
    await asyncio.wait_for(connection.wait_lost(), 30)
    assert not await asyncio.to_thread(Path(address.removeprefix("unix:")).exists)


async def test_a_request_beyond_the_limit_stays_here(port, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection survives: the replica never sees it."""
    monkeypatch.setattr(ReplicaConnection, "max_payload_bytes", 1000)
    connection = await port.connect(await port.serve())
    with pytest.raises(InvalidRequestError, match="1001 bytes: at most 1000"):
        await connection.infer(bytes(1001))
    assert await connection.infer(bytes(1000)) == bytes(1000)


@pytest.mark.parametrize("num", [1, 7])
async def test_answers_of_one_turn_leave_in_one_write(port, transports, num: int) -> None:
    waiting: list[asyncio.Future[bytes]] = []

    def wait(_: InferFrame) -> asyncio.Future[bytes]:
        waiting.append(asyncio.get_running_loop().create_future())
        if len(waiting) == num:
            for answer in waiting:
                answer.set_result(b"answer")
        return waiting[-1]

    connection = await port.connect(await port.serve(wait))
    replica = transports[GatewayConnection]
    before = replica.num_writes
    answers = await asyncio.gather(*(connection.infer(b"x") for _ in range(num)))
    assert answers == [b"answer"] * num
    assert replica.num_writes - before == 1


@pytest.mark.parametrize(("num", "num_writes"), [(1, 1), (7, 2)])
async def test_requests_of_one_turn_leave_in_one_write_but_the_first(
    port, transports, num: int, num_writes: int
) -> None:
    connection = await port.connect(await port.serve())
    gateway = transports[ReplicaConnection]
    before = gateway.num_writes
    await asyncio.gather(*(connection.infer(b"x") for _ in range(num)))
    assert gateway.num_writes - before == num_writes


async def test_both_ends_poll_between_the_requests_of_a_lone_caller(port) -> None:
    gateway = BusyPoll(10.0, is_asking=True)
    replica = BusyPoll(10.0, is_asking=False)
    found: list[tuple[int, bool, int, bool]] = []

    async def look(frame: InferFrame) -> bytes:
        await asyncio.sleep(0)
        own = (gateway.num_in_flight, gateway.is_polling)
        found.append((*own, replica.num_in_flight, replica.is_polling))
        return bytes(frame.request)

    connection = await port.connect(await port.serve(look, poll=replica), poll=gateway)
    for _ in range(3):
        await connection.infer(b"x")
    assert found[-1] == (1, True, 1, False), "the engine runs: the gateway alone waits"
    assert (gateway.num_in_flight, gateway.is_polling) == (0, True)
    assert (replica.num_in_flight, replica.is_polling) == (0, True)


async def test_a_unix_socket_takes_a_large_request_at_once(port, transports) -> None:
    """Its own buffer is a third of an image's request, and no kernel makes it larger by itself."""
    await port.connect(await port.serve(family="unix"))
    with socket.socket(socket.AF_UNIX) as plain:
        usual = plain.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    used = transports[ReplicaConnection].get_extra_info("socket")
    assert used.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > usual
