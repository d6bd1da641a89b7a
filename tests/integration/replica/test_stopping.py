"""A replica whose parts fail while it stops, and how long its health check may take."""

import asyncio
import re
import threading
from pathlib import Path

import pytest

from services.contracts.errors import NotReadyError
from services.replica import server
from services.replica.reporting.control_link import ControlLink
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.replica.transport import port_check
from services.replica.transport.data_server import DataServer
from services.telemetry.recorder import NullRecorder

from .conftest import Serving
from .controller import TestController
from .published import Shelf, ids_of, request_of


async def test_a_part_that_fails_to_close_leaves_no_other_open(
    shelf: Shelf, controller: TestController, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    before = set(threading.enumerate())
    replica_server = await serving()
    replica, left = replica_server.replica, list[DataServer]()
    threads = {t for t in threading.enumerate() if t.name.startswith("engine")} - before
    assert threads

    async def fails(part: DataServer | None = None) -> None:
        left.extend([part] if part else [])
        raise OSError("no")

    monkeypatch.setattr(DataServer, "close", fails)
    monkeypatch.setattr(replica, "drain", fails)
    with pytest.raises(OSError, match="no"):
        await replica_server.stop(grace_s=1)
    monkeypatch.undo()
    async with asyncio.timeout(30):
        await controller.detached()
    with pytest.raises(NotReadyError):
        replica.infer(request_of(ids_of(1, 2)))
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()
    (data,) = left
    await data.close()


async def test_what_failed_first_is_what_a_start_raises(
    shelf: Shelf, settings: ReplicaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    replica_server = ReplicaServer(settings, NullRecorder())
    plain_close = ControlLink.close

    async def fails(self: object, address: str) -> None:
        raise OSError("cannot listen")

    async def fails_too(link: ControlLink) -> None:
        await plain_close(link)
        raise ValueError("cannot close")

    monkeypatch.setattr(DataServer, "listen", fails)
    monkeypatch.setattr(ControlLink, "close", fails_too)
    with pytest.raises(OSError, match="cannot listen"):
        await replica_server.start()
    monkeypatch.undo()
    await replica_server.stop(grace_s=0)


def test_a_live_swap_may_hold_the_loop_for_long_before_a_replica_is_unhealthy() -> None:
    # Loading an engine beside the one in use takes a busy machine up to ten seconds at a
    # stretch; what fails is told in words before Serve stops waiting.
    source = Path(server.__file__).with_name("app.py").read_text()  # importing it needs Ray
    limit = re.search(r"^HEALTH_CHECK_TIMEOUT_S = ([0-9.]+)$", source, re.MULTILINE)
    assert limit is not None
    assert 10.0 <= port_check.CHECK_TIMEOUT_S < float(limit[1])
