"""Thousands of requests in slots at once, with replicas that leave or look for long; and kills."""

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from services.contracts.errors import ConnectionLostError, SmeltError
from services.contracts.transport.frames import InferFrame
from services.contracts.transport.large_buffer import LargeBuffer
from services.gateway.upstream.arena import RequestArena, slot_of
from tests.integration.data_port.lending import (
    PATIENCE_S,
    SIZE,
    Holding,
    failure_of,
    requested,
    until,
    until_free,
)

NUM_REQUESTS = 4000
NUM_AT_ONCE = 40
_STAMP_BYTES = 8


def _stamp(payload: memoryview, number: int) -> None:
    """Makes a request unlike all others, at both ends and at places between."""
    stamp = number.to_bytes(_STAMP_BYTES, "big")
    for begin in _places(len(payload)):
        payload[begin : begin + _STAMP_BYTES] = stamp


def _places(size: int) -> list[int]:
    return [0, *range(65_536, size - 2 * _STAMP_BYTES, 65_536), size - _STAMP_BYTES]


class Checker:
    """A handler that looks at its request again and again, and may do so long after a cancel."""

    def __init__(self, rng: random.Random) -> None:
        self.num_lent, self.wrong, self.late = 0, [], set[asyncio.Task[None]]()
        self._rng = rng

    async def __call__(self, frame: InferFrame) -> bytes:
        """The number of the request."""
        request = frame.request
        assert isinstance(request, memoryview)
        self.num_lent += request.readonly
        number, rng = bytes(request[:_STAMP_BYTES]), self._rng
        if rng.random() < 0.2:
            task = asyncio.create_task(self._look(request, number, rng.randrange(200)))
            self.late.add(task)
            task.add_done_callback(self.late.discard)
        await self._look(request, number, rng.randrange(60))
        if rng.random() < 0.1:
            raise SmeltError("no answer")
        return number

    async def _look(self, request: memoryview, number: bytes, num_turns: int) -> None:
        """Checks at the beginning and at the end, and lets others run in between."""
        self._check(request, number)
        for _ in range(num_turns):
            await asyncio.sleep(0)
        self._check(request, number)

    def _check(self, request: memoryview, number: bytes) -> None:
        found = {bytes(request[at : at + _STAMP_BYTES]) for at in _places(len(request))}
        if found != {number}:
            self.wrong.append((number, found))


async def _ask(connections: list[Any], arena: RequestArena, rng: random.Random, n: int) -> bool:
    """One request, with whatever may become of it; whether it was answered."""
    size = rng.randrange(65_536, 2 << 20)
    payload = LargeBuffer(size, memoryview(b""), arena.take).payload
    _stamp(payload, n)
    # The second is a retry, or the same once more.
    for connection in rng.choices(connections, k=rng.choice((1, 1, 2))):
        asking = asyncio.ensure_future(connection.infer(payload))
        if rng.random() < 0.3:
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
            asking.cancel()
        failure = await failure_of(asking)
    if asking.cancelled() or failure is not None:
        return False
    assert asking.result() == n.to_bytes(_STAMP_BYTES, "big")
    return True


async def test_no_request_is_ever_overwritten_while_anyone_looks(port, arena) -> None:
    rng = random.Random(5)
    checkers = [Checker(rng), Checker(rng)]
    connections = [
        await port.connect(await port.serve(checker, family="unix"), arena=arena)
        for checker in checkers
    ]
    numbers, answered = iter(range(NUM_REQUESTS)), []

    async def ask_on() -> None:
        answered.extend([await _ask(connections, arena, rng, number) for number in numbers])

    await asyncio.gather(*(ask_on() for _ in range(NUM_AT_ONCE)))
    await until(lambda: not any(checker.late for checker in checkers))
    assert [checker.wrong for checker in checkers] == [[], []]
    assert all(checker.num_lent > NUM_REQUESTS / 10 for checker in checkers)
    assert len(answered) == NUM_REQUESTS
    assert NUM_REQUESTS / 3 < sum(answered) < NUM_REQUESTS
    await until_free(arena)
    assert len(arena.consumers) == 2


_REPLICA = """
import asyncio, sys
from services.replica.transport.data_server import DataServer

async def hang(frame):
    await asyncio.Event().wait()

async def serve():
    server = DataServer(hang, hang)
    print(await server.listen(sys.argv[1]), flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""

_GATEWAY = """
import asyncio, sys
from services.gateway.upstream.replica_connection import connect
from services.gateway.upstream.arena import RequestArena

async def ask():
    arena = RequestArena(32 << 20)
    connection = await connect(sys.argv[1], arena=arena)
    payload = arena.take(602_112)
    payload[:] = bytes([7]) * len(payload)
    await connection.infer(payload)

asyncio.run(ask())
"""


@contextlib.asynccontextmanager
async def _process(script: str, address: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python process that is killed in the end, if not before."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, address, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_replica_that_is_killed_holds_nothing(port, arena, tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'killed.sock'}"
    async with _process(_REPLICA, address) as process:
        assert process.stdout is not None
        assert (await process.stdout.readline()).decode().strip() == address
        connection = await port.connect(address, arena=arena)
        requests = [requested(arena) for _ in range(5)]
        blocks = [slot.block for each in requests if (slot := slot_of(each)) is not None]
        del slot
        asking = [asyncio.create_task(connection.infer(request)) for request in requests]
        requests.clear()
        await connection.ping()
        assert [block is not None and block.is_lent for block in blocks] == [True] * 5
        process.send_signal(signal.SIGKILL)
        for each in asking:
            assert isinstance(await failure_of(each), ConnectionLostError)
        del each
        asking.clear()
        await until(lambda: not arena.consumers)
        await until_free(arena)


async def test_a_gateway_that_is_killed_takes_no_memory_with_it(port) -> None:
    """Its requests can be read to the end, and the replica serves on."""
    handler = Holding(keeps=True)
    address = await port.serve(handler, family="unix")
    async with _process(_GATEWAY, address) as process:
        async with asyncio.timeout(3 * PATIENCE_S):
            await handler.started.acquire()
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await until(lambda: not port.server.connections)
    (seen,) = handler.kept
    assert seen.readonly
    assert bytes(seen) == b"\7" * SIZE
    del seen
    handler.kept.clear()
    handler.release.set()
    connection = await port.connect(address)
    assert await connection.infer(b"ab") == b"ab"
