"""A gateway with two workers, as a process of its own."""

import asyncio
import os
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import psutil

from services.telemetry.ready import wait_ready

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

COUNTED = 'smelt_requests_total{code="OK",model="echo",version="1",worker="%d"}'
SERVING = "smelt_gateway_workers_serving %.1f\n"
RESTARTS = "smelt_gateway_worker_restarts_total %.1f\n"
_READY = 'smelt_replicas_ready{generation="cpu-x86_64-v3",model="echo",version="1",worker="%d"} 2'


class RunningGateway:
    """A gateway with two workers, as a process."""

    def __init__(self, process: asyncio.subprocess.Process, facts: dict[str, int]) -> None:
        self.process, self.url = process, f"127.0.0.1:{facts['grpc_port']}"
        self.facts = facts

    def workers(self) -> list[psutil.Process]:
        """Its workers that live."""
        return psutil.Process(self.process.pid).children()

    async def scrape(self) -> str:
        """What Prometheus would read."""
        return await asyncio.to_thread(self._scrape)

    def _scrape(self) -> str:
        url = f"http://127.0.0.1:{self.facts['metrics_port']}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return str(answer.read().decode())

    async def until_scraped(self, *wanted: str) -> None:
        """Scrape until each text occurs; workers learn of the fleet by and by."""
        async with asyncio.timeout(60):
            while await self._misses(wanted):  # noqa: ASYNC110 - the process tells no event
                await asyncio.sleep(0.05)

    async def _misses(self, wanted: tuple[str, ...]) -> bool:
        found = await self.scrape()
        return not all(text in found for text in wanted)

    async def until_replaced(self, victim: psutil.Process) -> None:
        """Wait until a worker that was killed is gone and another one serves in its place."""
        await asyncio.to_thread(victim.wait, 30)
        await self.until_scraped(RESTARTS % 1, SERVING % 2)


@asynccontextmanager
async def running_gateway(
    fleet: "Fleet", environment: dict[str, str] | None = None, **more: Any
) -> AsyncIterator[RunningGateway]:
    """Two workers that follow a fleet's controller and know its two replicas; `more` settings."""
    read_fd, write_fd = os.pipe()
    settings = {
        "grpc_port": 0,
        "metrics_port": 0,
        "host_id": "here",
        "ready_fd": write_fd,
        "controller": f"127.0.0.1:{fleet.controller.port}",
        "drain_grace_s": 60,
        **more,
    }
    own = {f"SMELT_GATEWAY_{k.upper()}": str(v) for k, v in settings.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.gateway",
        "--workers",
        "2",
        env=dict(os.environ) | own | (environment or {}),
        pass_fds=(write_fd,),
    )
    os.close(write_fd)
    facts = await asyncio.to_thread(wait_ready, read_fd, 60, "gateway")
    running = RunningGateway(process, facts)
    try:
        await running.until_scraped(_READY % 0, _READY % 1)
        yield running
    finally:
        if process.returncode is None:
            process.kill()  # its workers end with it
            await process.wait()
