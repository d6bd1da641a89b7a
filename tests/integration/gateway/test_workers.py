"""Several gateway processes on one port: shared, counted together, replaced, drained."""

import asyncio
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from services.gateway.workers import reserved_port
from services.telemetry.ready import wait_ready

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

Inputs = Callable[..., list[Any]]


class RunningGateway:
    """A gateway with two workers, as a process."""

    def __init__(self, process: asyncio.subprocess.Process, facts: dict[str, int]) -> None:
        self.process, self.url = process, f"127.0.0.1:{facts['grpc_port']}"
        self._metrics_port = facts["metrics_port"]

    def workers(self) -> list[psutil.Process]:
        """Its workers that live."""
        return psutil.Process(self.process.pid).children()

    async def scrape(self) -> str:
        """What Prometheus would read."""
        return await asyncio.to_thread(self._scrape)

    def _scrape(self) -> str:
        url = f"http://127.0.0.1:{self._metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())

    async def until_scraped(self, *wanted: str) -> None:
        """Scrape until each text occurs; workers learn of the fleet by and by."""
        async with asyncio.timeout(60):
            while await self._misses(wanted):  # noqa: ASYNC110 - the process tells no event
                await asyncio.sleep(0.05)

    async def _misses(self, wanted: tuple[str, ...]) -> bool:
        found = await self.scrape()
        return not all(text in found for text in wanted)


@pytest.fixture
async def gateway(echo_fleet: "Fleet") -> AsyncIterator[RunningGateway]:
    """Two workers that follow the fleet's controller."""
    read_fd, write_fd = os.pipe()
    settings = {
        "grpc_port": 0, "metrics_port": 0, "host_id": "here", "ready_fd": write_fd,
        "controller": f"127.0.0.1:{echo_fleet.controller.port}", "drain_grace_s": 60,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.gateway", "--workers", "2",
        env=dict(os.environ) | {f"SMELT_GATEWAY_{k.upper()}": str(v) for k, v in settings.items()},
        pass_fds=(write_fd,),
    )  # fmt: skip
    os.close(write_fd)
    facts = await asyncio.to_thread(wait_ready, read_fd, 60, "gateway")
    running = RunningGateway(process, facts)
    ready = (
        'smelt_replicas_ready{generation="cpu-x86_64-v3",model="echo",version="1",worker="%d"} 2'
    )
    try:
        await running.until_scraped(ready % 0, ready % 1)
        yield running
    finally:
        if process.returncode is None:
            process.kill()  # its workers end with it
            await process.wait()


async def _ask(url: str, inputs: Inputs, stop: asyncio.Event) -> tuple[int, int]:
    """Answers and losses of one client that goes on asking, on connections of its own."""
    num_answers = num_lost = 0
    while not stop.is_set():
        # A connection of its own, which may be to the other worker than the last one was.
        own = [("grpc.use_local_subchannel_pool", 1)]
        async with InferenceServerClient(url, channel_args=own) as client:
            try:
                for _ in range(10):
                    await client.infer("echo", inputs(), client_timeout=30)
                    num_answers += 1
            except InferenceServerException as error:
                if error.status() != "StatusCode.UNAVAILABLE":
                    raise
                num_lost += 1
    return num_answers, num_lost


async def test_a_killed_worker_is_replaced_while_the_other_serves(
    gateway: RunningGateway, inputs: Inputs
) -> None:
    stop = asyncio.Event()
    clients = [asyncio.create_task(_ask(gateway.url, inputs, stop)) for _ in range(8)]
    counted = 'smelt_requests_total{code="OK",model="echo",version="1",worker="%d"}'
    await gateway.until_scraped(counted % 0, counted % 1)
    victim, survivor = gateway.workers()
    victim.send_signal(signal.SIGKILL)
    await asyncio.to_thread(victim.wait, 30)
    async with asyncio.timeout(60):
        while len(pids := {each.pid for each in gateway.workers()}) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert survivor.pid in pids
    assert victim.pid not in pids
    # The new one counts from nothing, which is how its series shows that it serves.
    await gateway.until_scraped(counted % 0, counted % 1)
    stop.set()
    answers, lost = zip(*await asyncio.gather(*clients), strict=True)
    assert sum(answers) > 0
    # What the dead one had, and what was on its way to it: each client waits for one at a time.
    assert max(lost) <= 2
    # Without the process above them they end, and leave the port.
    workers = gateway.workers()
    gateway.process.kill()
    _, left = await asyncio.to_thread(psutil.wait_procs, workers, 60)
    assert left == []
    reserved_port("127.0.0.1", int(gateway.url.rpartition(":")[2])).close()


async def test_all_drain_at_sigterm(
    gateway: RunningGateway, echo_fleet: "Fleet", inputs: Inputs
) -> None:
    in_flight, finish = asyncio.Event(), asyncio.Event()

    async def slow(frame: Any) -> bytes:
        in_flight.set()
        await finish.wait()
        return await echo_fleet.replicas["r1"].echo(frame)

    for replica in echo_fleet.replicas.values():
        replica.answer = slow
    workers = gateway.workers()
    async with InferenceServerClient(gateway.url) as client:
        request = asyncio.ensure_future(client.infer("echo", inputs()))
        await asyncio.wait_for(in_flight.wait(), 30)
        gateway.process.terminate()
        # One has nothing to wait for, the other waits for its request.
        ends = [asyncio.create_task(asyncio.to_thread(each.wait, 60)) for each in workers]
        _, left = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert len(left) == 1
        assert not request.done()
        finish.set()
        assert (await request).as_numpy("y") is not None
    await asyncio.wait(ends)
    assert await asyncio.wait_for(gateway.process.wait(), 30) == 0
    assert not any(each.is_running() for each in workers)
