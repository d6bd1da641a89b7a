"""A data port in a process of its own, which a test may kill or freeze."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
REPLICA = """
import asyncio
from services.replica.transport.data_server import DataServer

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


@dataclass(kw_only=True)
class ReplicaProcess:
    """A running data port: it answers with the request's bytes, and never answers `hang`.

    Attributes:
        addresses: by family, "tcp" and "unix".
    """

    process: asyncio.subprocess.Process
    addresses: dict[str, str]

    async def kill(self) -> None:
        """End it without a word, also when it is frozen."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def replica_process(folder: Path) -> AsyncIterator[ReplicaProcess]:
    """Start one with its socket in a folder; it is killed in the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        REPLICA.replace("{path}", str(folder / "data.sock")),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    lines = [(await process.stdout.readline()).decode().strip() for _ in range(2)]
    replica = ReplicaProcess(
        process=process, addresses=dict(zip(("tcp", "unix"), lines, strict=True))
    )
    try:
        yield replica
    finally:
        await replica.kill()
