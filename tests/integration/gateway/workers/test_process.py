"""The gateway as a process: how it starts, tells where it listens, drains and ends."""

import asyncio
import os
import resource
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc.aio import InferenceServerClient

from services.contracts.transport.frames import InferFrame
from services.telemetry.ready import wait_ready

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

ROOT = Path(__file__).resolve().parents[4]
Start = Callable[..., Any]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts gateway processes, which may open few files as in a shell; all are ended."""
    started: list[asyncio.subprocess.Process] = []

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))

    async def process(
        *arguments: str, pass_fds: tuple[int, ...] = (), **settings: str
    ) -> asyncio.subprocess.Process:
        given = {f"SMELT_GATEWAY_{name.upper()}": value for name, value in settings.items()}
        started.append(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.gateway",
                *arguments,
                env={**os.environ, **given},
                cwd=ROOT,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=pass_fds,
            )
        )
        return started[-1]

    yield process
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for child in started:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def test_life_of_a_gateway_process(
    echo_fleet: "Fleet", inputs: Callable[..., Any], start: Start
) -> None:
    read_fd, write_fd = os.pipe()
    child = await start(
        pass_fds=(write_fd,),
        ready_fd=str(write_fd),
        grpc_port="0",
        metrics_port="0",
        host_id="here",
        drain_grace_s="600",
        controller=f"127.0.0.1:{echo_fleet.controller.port}",
    )
    os.close(write_fd)
    facts = await asyncio.to_thread(wait_ready, read_fd, 60, "gateway")
    assert facts["pid"] == child.pid
    least, most = psutil.Process(child.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert least == most > 1024
    url = f"127.0.0.1:{facts['grpc_port']}"
    in_flight, finish = asyncio.Event(), asyncio.Event()

    async def slow(frame: InferFrame) -> bytes:
        in_flight.set()
        await finish.wait()
        return await echo_fleet.replicas["r1"].echo(frame)

    async with InferenceServerClient(url) as client, grpc.aio.insecure_channel(url) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await _until_status(watch, health_pb2.HealthCheckResponse.SERVING)
        await client.infer("echo", inputs())
        metrics = await asyncio.to_thread(_scrape, facts["metrics_port"])
        assert 'smelt_requests_total{code="OK",model="echo",version="1"} 1.0' in metrics
        for replica in echo_fleet.replicas.values():
            replica.answer = slow
        request = asyncio.ensure_future(client.infer("echo", inputs()))
        await asyncio.wait_for(in_flight.wait(), 30)
        child.send_signal(signal.SIGTERM)
        await _until_status(watch, health_pb2.HealthCheckResponse.NOT_SERVING)
        finish.set()
        assert (await request).as_numpy("y") is not None
        # The watch does not hold up the end.
        assert await watch.read() == grpc.aio.EOF
        assert await asyncio.wait_for(child.wait(), 60) == 0


async def _until_status(watch: Any, status: int) -> None:
    async with asyncio.timeout(30):
        while (await watch.read()).status != status:
            pass


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return str(answer.read(), "utf-8")


async def test_a_wrong_setting_ends_the_start(start: Start) -> None:
    child = await start(grpc_port="70000")
    _, stderr = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode == 2
    assert b"SMELT_GATEWAY_GRPC_PORT: got '70000'" in stderr


@pytest.mark.parametrize("which", ["GRPC", "METRICS"])
async def test_a_taken_port_ends_the_start(fleet_of: "Fleet", start: Start, which: str) -> None:
    ports = {"grpc_port": "0", "metrics_port": "0", f"{which.lower()}_port": ""}
    ports[f"{which.lower()}_port"] = str(fleet_of.gateway.port)
    child = await start(**ports)
    _, stderr = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode == 2
    told = str(stderr, "utf-8")
    assert f"`smelt up --{which.lower()}-port` or SMELT_GATEWAY_{which}_PORT, 0 takes" in told
