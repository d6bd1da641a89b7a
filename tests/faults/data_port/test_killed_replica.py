"""A replica process that dies: every request on its connection learns so at once."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from services.contracts.errors import ConnectionLostError
from services.gateway.replica_connection import connect

ROOT = Path(__file__).resolve().parents[3]
REPLICA = """
import asyncio
from services.replica.data_server import DataServer

async def infer(frame):
    if frame.request == b"hang":
        await asyncio.Event().wait()
    return bytes(frame.request)

async def statistics():
    return b""

async def main():
    server = DataServer(infer, statistics)
    print(await server.listen("127.0.0.1:0"), flush=True)
    print(await server.listen("unix:{path}"), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("family", ["tcp", "unix"])
async def test_killing_a_replica_fails_its_requests_at_once(tmp_path: Path, family: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        REPLICA.replace("{path}", str(tmp_path / "data.sock")),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    addresses = [(await process.stdout.readline()).decode().strip() for _ in range(2)]
    connection = await connect(addresses[family == "unix"])
    assert await connection.infer(b"alive") == b"alive"
    tasks = [asyncio.create_task(connection.infer(b"hang")) for _ in range(50)]
    await connection.ping()
    process.send_signal(signal.SIGKILL)
    errors = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    await process.wait()
    assert all(isinstance(error, ConnectionLostError) for error in errors)
    assert all(error.may_have_run for error in errors)
    with pytest.raises(ConnectionLostError, match="no connection"):
        await connect(addresses[family == "unix"])
