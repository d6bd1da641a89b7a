"""Changes that clients make to end workers, which answer others too: all of these live."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from services.contracts.errors import InvalidRequestError, NotFoundError
from services.gateway.shared_memory.regions import SharedMemoryRegions
from services.gateway.shared_memory.rpcs import REGISTER
from services.gateway.workers.change_channel import MAX_CHANGE_BYTES, Change, ChangeChannel
from services.gateway.workers.keeper_link import KeeperLink
from services.pb import open_inference_v2_pb2 as pb
from tests.integration.gateway.workers.test_state_keeper import QUIET, UNLOAD, Above, root_level  # noqa: F401 - a fixture

TRACE = "TraceSetting"


async def test_more_refused_changes_at_once_than_a_socket_takes() -> None:
    above = Above()
    await above.worker("asked")
    nameless = pb.SystemSharedMemoryRegisterRequest(key="/key", byte_size=1)
    asked = (above.questions[REGISTER](nameless) for _ in range(1000))
    found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
    assert {type(each) for each in found} == {InvalidRequestError}
    assert above.killed == []
    above.keeper.close()


class Busy(ChangeChannel):
    """A worker that does not read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", transport)


async def answer_at_once(_: Change) -> bytes:
    """Nothing more."""
    return b""


async def test_one_that_is_too_busy_to_read_has_all_answers_later() -> None:
    above = Above()
    busy = Busy(answer_at_once)
    await busy.open(await above.end_for("busy"))
    busy.transport.pause_reading()
    # Each answer names the key: together they are more than a socket takes.
    request = pb.SystemSharedMemoryRegisterRequest(name="r", key="/a/" + "k" * 4000, byte_size=1)
    refused = Change(REGISTER, request.SerializeToString())
    asked = [asyncio.ensure_future(busy.ask(refused)) for _ in range(600)]
    await above.worker("other")
    await asyncio.wait_for(above.questions["LogSettings"](QUIET), 30)
    assert not any(each.done() for each in asked)
    busy.transport.resume_reading()
    found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
    assert {type(each) for each in found} == {InvalidRequestError}
    assert above.killed == []
    above.keeper.close()
    busy.close()


async def test_one_that_stands_still_is_ended_and_the_client_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    above = Above()
    still = Busy(answer_at_once)
    await still.open(await above.end_for("still"))
    await asyncio.wait_for(still.ask(Change()), 30)
    still.transport.pause_reading()
    await above.worker("asked")
    for name in ("APPLY_TIMEOUT_S", "FOLLOW_TIMEOUT_S"):
        monkeypatch.setattr(f"services.gateway.workers.state_keeper.{name}", 0.0)
    request = pb.RepositoryModelUnloadRequest(model_name="m")
    await asyncio.wait_for(above.questions[UNLOAD](request), 30)
    assert above.killed == ["still"]
    above.keeper.close()
    still.close()


async def test_settings_that_grow_with_each_request_reach_one_that_comes_later() -> None:
    above = Above()
    changed: list[pb.TraceSettingRequest] = []

    async def take(change: Change) -> bytes:
        changed.append(pb.TraceSettingRequest.FromString(change.body))
        return b""

    first = await above.channel("first", take)
    for name in ("trace_count", "log_frequency"):
        request = pb.TraceSettingRequest()
        request.settings[name].value.append("9" * (MAX_CHANGE_BYTES - 1000))
        request.settings["trace_rate"].value.append("7")
        await asyncio.wait_for(first.ask(Change(TRACE, request.SerializeToString())), 30)
    later = await above.channel("later", take)
    assert {name: list(each.value) for name, each in changed[-1].settings.items()} == {
        "trace_level": ["OFF"],
        "trace_rate": ["7"],
    }
    assert above.killed == []
    above.keeper.close()
    first.close()
    later.close()


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process can open none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_one_that_cannot_open_the_file_of_a_region_serves_without_it(tmp_path: Path) -> None:
    """As of a client that took the permission away since."""
    above = Above(SharedMemoryRegions(tmp_path))
    await above.worker("first")
    (tmp_path / "key").write_bytes(b"abcd")
    asked = pb.SystemSharedMemoryRegisterRequest(name="r", key="/key", byte_size=4)
    await above.questions[REGISTER](asked)
    regions = SharedMemoryRegions()
    later = KeeperLink((await above.end_for("later")).detach())
    later.shared({}, {}, regions)
    with no_more_files():
        await asyncio.wait_for(later.restore(), 30)
    with pytest.raises(NotFoundError):
        regions.region("r")
    assert above.killed == []
    above.keeper.close()
    later.close()
