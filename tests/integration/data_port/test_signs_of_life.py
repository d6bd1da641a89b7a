"""What a gateway takes for a sign of life on a line that is slow, or stands still."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from services.contracts.errors import ConnectionLostError
from services.contracts.security.fleet_security import FleetTls
from services.contracts.transport.frame_protocol import Traffic
from services.contracts.transport.frames import NO_TOKEN, InferFrame
from services.gateway.routing.fleet_view import EngineInUse, ReplicaInfo
from services.gateway.upstream.endpoint import Endpoint
from services.gateway.upstream.holder import ReplicaHolder
from services.gateway.upstream.replica_connection import connect
from tests.certificates import Authority

ENGINE = EngineInUse(digest="", kind="", precision="", generation="", fallback_reason="")
NUM_BYTES = 20 << 20
_PIECE_BYTES, _PAUSE_S = 1 << 16, 0.008


class SlowLine:
    """Passes bytes on at about 8 MB/s at most, and none while `is_cut`."""

    def __init__(self, replica: str) -> None:
        self._replica, self.is_cut = replica, asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self, folder: Path) -> AsyncIterator[str]:
        """Listen as the replica does; yields the address."""
        if self._replica.startswith("unix:"):
            path = str(folder / "slow")
            server, address = await asyncio.start_unix_server(self._take, path), f"unix:{path}"
        else:
            # Else the kernel would take megabytes at once.
            listener = socket.create_server(("127.0.0.1", 0))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE_BYTES)
            server = await asyncio.start_server(self._take, sock=listener)
            address = f"127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield address
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        if self._replica.startswith("unix:"):
            path = self._replica.removeprefix("unix:")
            far, forth = await asyncio.open_unix_connection(path)
        else:
            host, _, port = self._replica.rpartition(":")
            far, forth = await asyncio.open_connection(host, int(port))
        for reader, writer in ((near, forth), (far, back)):
            task = asyncio.create_task(self._pass_on(reader, writer))
            self._tasks.add(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_PIECE_BYTES):
                if self.is_cut.is_set():
                    await asyncio.Event().wait()
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(_PAUSE_S if len(data) > 1000 else 0)
        finally:
            writer.transport.abort()


@asynccontextmanager
async def held(
    address: str, tls: FleetTls | None = None
) -> AsyncIterator[tuple[ReplicaHolder, Endpoint]]:
    """A gateway's holder of the replica there, connected."""
    replica = ReplicaInfo(
        replica_id="r",
        model_name="m",
        model_version=1,
        is_ready=True,
        addresses=(address,),
        token=NO_TOKEN,
        host_id="here",
        generation="",
        engine=ENGINE,
    )
    changed = asyncio.Event()
    holder = ReplicaHolder(
        replica, host_id="here", connect=partial(connect, tls=tls), on_change=changed.set
    )
    try:
        await asyncio.wait_for(changed.wait(), 30)
        assert holder.endpoint
        yield holder, holder.endpoint
    finally:
        holder.release()


def _tls(folder: Path) -> FleetTls:
    authority = Authority(folder, "authority")
    files = authority.sign("either end")
    return FleetTls(files.cert, files.key, authority.cert)


@pytest.fixture(autouse=True)
def asks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a real gateway, in a fifth of the time; less would be a pause of a busy machine."""
    monkeypatch.setattr("services.gateway.upstream.holder.PING_EVERY_S", 0.2)
    monkeypatch.setattr("services.gateway.upstream.holder.PING_TIMEOUT_S", 1.0)


async def _first_byte(frame: InferFrame) -> bytes:
    return bytes(frame.request)[:1]


async def _much(frame: InferFrame) -> bytes:
    return bytes(NUM_BYTES)


@pytest.mark.parametrize("family", ["tcp", "unix", "tls"])
@pytest.mark.parametrize("is_upload", [True, False])
async def test_a_line_that_is_busy_for_long_is_not_given_up(
    port, tmp_path: Path, family: str, *, is_upload: bool
) -> None:
    """The question for a sign of life, or its answer, waits behind what is on its way."""
    tls = _tls(tmp_path) if family == "tls" else None
    answered = _first_byte if is_upload else _much
    line = SlowLine(await port.serve(answered, family=family.replace("tls", "tcp"), tls=tls))
    async with line.open(tmp_path) as address, held(address, tls) as (holder, endpoint):
        request = bytes(NUM_BYTES) if is_upload else b"r"
        began_s = asyncio.get_running_loop().time()
        answer = await endpoint.infer(request, 60.0, trace="")
        assert len(answer) == (1 if is_upload else NUM_BYTES)
        assert asyncio.get_running_loop().time() - began_s > 2.0, "the line was too fast to tell"
        assert holder.endpoint is endpoint


@pytest.mark.parametrize("family", ["tcp", "unix"])
async def test_a_line_that_stands_still_is_given_up_whatever_waits(
    port, tmp_path: Path, family: str
) -> None:
    line = SlowLine(await port.serve(_first_byte, family=family))
    async with line.open(tmp_path) as address, held(address) as (_, endpoint):
        line.is_cut.set()
        sent = [endpoint.infer(bytes(NUM_BYTES), 60.0, trace="") for _ in range(2)]
        errors = await asyncio.wait_for(asyncio.gather(*sent, return_exceptions=True), 30)
        assert [type(error) for error in errors] == [ConnectionLostError] * 2


async def test_a_sign_of_life_is_asked_for_before_requests_that_wait(port) -> None:
    connection = await port.connect(await port.serve())
    connection.pause_writing()
    waiting = asyncio.create_task(connection.infer(b"later"))
    await asyncio.wait_for(connection.ping(), 30)
    assert not waiting.done()
    connection.resume_writing()
    assert await asyncio.wait_for(waiting, 30) == b"later"


@pytest.mark.parametrize(
    ("before", "after", "shows_life"),
    [
        (Traffic(5, 10, 0), Traffic(5, 10, 0), False),
        (Traffic(5, 10, 0), Traffic(6, 10, 0), True),
        # The kernel takes that for a peer that stands still, too.
        (Traffic(5, 10, 0), Traffic(5, 20, 0), False),
        (Traffic(5, 10, 9), Traffic(5, 20, 0), True),
        (Traffic(5, 10, 9), Traffic(5, 10, 99), False),
    ],
)
async def test_what_shows_life(before: Traffic, after: Traffic, *, shows_life: bool) -> None:
    assert after.has_progressed_since(before) is shows_life
