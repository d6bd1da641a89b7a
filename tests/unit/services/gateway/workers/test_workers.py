"""The port that workers share, and when it is not theirs to share."""

import asyncio
import errno
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.contracts.errors import InvalidRequestError
from services.gateway.settings import GatewaySettings
from services.gateway.workers.common_state import CommonState
from services.gateway.workers.state_keeper import StateKeeper
from services.gateway.workers.supervisor import Worker, Workers, reserved_port


def test_a_reserved_port_takes_listeners_that_share_it_and_no_others() -> None:
    with reserved_port("127.0.0.1", 0) as held:
        address = held.getsockname()
        with socket.socket() as sharing:
            sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sharing.bind(address)
            sharing.listen()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)


@pytest.mark.parametrize("is_sharing", [True, False])
def test_a_port_that_somebody_listens_on_is_refused(is_sharing: bool) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(is_sharing))
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InvalidRequestError, match=f"cannot share 127.0.0.1:{port}"):
            reserved_port("127.0.0.1", port)


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"cannot share 192\.0\.2\.1:0"):
        reserved_port("192.0.2.1", 0)


def open_sockets() -> set[str]:
    """Sockets and pipes of this process, each with a number of its own."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed since, as that of this list is
            found.add(str(descriptor.readlink()))
    return {each for each in found if each.startswith(("socket:", "pipe:"))}


async def test_a_worker_that_the_system_cannot_start_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    num_tries, is_tried_again = 0, asyncio.Event()

    async def no_process(*_: object, **__: object) -> None:
        nonlocal num_tries
        num_tries += 1
        if num_tries == 2:
            is_tried_again.set()
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", no_process)
    monkeypatch.setattr("services.gateway.workers.supervisor.FIRST_PAUSE_S", 0.01)
    keeper = StateKeeper(CommonState(0.0))
    before = open_sockets()
    keeping = asyncio.create_task(Worker(3, {}, 1.0, keeper).keep())
    async with asyncio.timeout(30):
        await is_tried_again.wait()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert open_sockets() <= before, "others' may close meanwhile, as garbage is collected"
    assert "gateway worker 3 cannot be started now: [Errno 11]" in caplog.text
    keeper.close()


async def test_a_gateway_that_is_told_to_stop_ends_without_waiting_for_its_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, stop, served = asyncio.Event(), asyncio.Event(), asyncio.Event()
    pids: list[int] = []
    start = asyncio.create_subprocess_exec

    async def noted(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*command, **options)
        pids.append(process.pid)
        if len(pids) == 2:
            started.set()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    settings = GatewaySettings(
        workers=2, controller="127.0.0.1:9", grpc_port=0, metrics_port=0, drain_notice_s=0
    )
    running = asyncio.create_task(Workers(settings, trace_share=0.0).run(stop, served.set))
    await started.wait()
    stop.set()
    await asyncio.wait_for(running, 30)
    assert not served.is_set()
    assert not any(psutil.pid_exists(pid) for pid in pids)
