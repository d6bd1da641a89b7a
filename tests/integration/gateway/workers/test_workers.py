"""Several gateway processes on one port: shared, counted together, replaced, drained."""

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from services.gateway.workers.supervisor import reserved_port
from tests.integration.gateway.answers import Inputs
from tests.integration.gateway.workers.worker_gateway import (
    COUNTED,
    RESTARTS,
    SERVING,
    RunningGateway,
    running_gateway,
)

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


@pytest.fixture
async def gateway(echo_fleet: "Fleet") -> AsyncIterator[RunningGateway]:
    """Two workers that follow the fleet's controller."""
    async with running_gateway(echo_fleet) as running:
        yield running


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
    await gateway.until_scraped(COUNTED % 0, COUNTED % 1)
    await gateway.until_scraped(SERVING % 2, RESTARTS % 0)
    victim, survivor = gateway.workers()
    victim.send_signal(signal.SIGKILL)
    await gateway.until_replaced(victim)
    pids = {each.pid for each in gateway.workers()}
    assert survivor.pid in pids
    assert victim.pid not in pids
    # The new one counts from nothing, which is how its series shows that it serves.
    await gateway.until_scraped(COUNTED % 0, COUNTED % 1)
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
