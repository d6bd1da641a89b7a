"""Changes that reach workers of a gateway: one that fails, dies, comes later, is left alone."""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.contracts.errors import InvalidRequestError, NotFoundError, NotReadyError
from services.gateway.access.caller import CALLER_NAME
from services.gateway.api.log_settings import log_settings
from services.gateway.shared_memory.regions import SharedMemoryRegions
from services.gateway.shared_memory.rpcs import REGISTER
from services.gateway.workers.change_channel import Change, ChangeChannel
from services.gateway.workers.common_state import CommonState
from services.gateway.workers.keeper_link import KeeperLink
from services.gateway.workers.state_keeper import StateKeeper
from services.pb import open_inference_v2_pb2 as pb

UNLOAD = "RepositoryModelUnload"
QUIET = pb.LogSettingsRequest()
QUIET.settings["log_info"].bool_param = False


@pytest.fixture(autouse=True)
def root_level() -> Iterator[None]:
    """Puts the log level of this process back, which all workers here share."""
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.INFO)
    yield
    logging.getLogger().setLevel(level)


async def unloaded(_: Any) -> pb.RepositoryModelUnloadResponse:
    """A model is unloaded as far as the worker knows that was asked."""
    return pb.RepositoryModelUnloadResponse()


async def follow_at_once(_: Any) -> None:
    """Whoever has seen it already."""


class Above:
    """The process above, with what it ended."""

    def __init__(self, regions: SharedMemoryRegions | None = None) -> None:
        self.keeper = StateKeeper(CommonState(0.0, regions))
        self.killed: list[str] = []
        self.was_killed = asyncio.Event()

    async def end_for(self, what: str) -> socket.socket:
        """What a worker inherits."""
        link, theirs = await self.keeper.link(what)

        def kill() -> None:
            self.killed.append(what)
            self.was_killed.set()

        link.kill = kill
        return theirs

    async def channel(
        self, what: str, answer: Callable[[Change], Awaitable[bytes]]
    ) -> ChangeChannel:
        """That of a worker which answers as given, and serves."""
        channel = ChangeChannel(answer)
        await channel.open(await self.end_for(what))
        await asyncio.wait_for(channel.ask(Change()), 30)
        return channel

    async def worker(
        self, what: str, follow: Callable[[Any], Awaitable[None]] = follow_at_once
    ) -> tuple[KeeperLink, SharedMemoryRegions]:
        """A worker that serves."""
        regions = SharedMemoryRegions()
        link = KeeperLink((await self.end_for(what)).detach())
        questions = {"LogSettings": log_settings, REGISTER: regions.register, UNLOAD: unloaded}
        self.questions = link.shared(questions, {UNLOAD: follow}, regions)
        await link.restore()
        return link, regions


async def test_one_that_refuses_what_others_do_is_ended_and_the_client_is_answered() -> None:
    above = Above()
    await above.worker("good")
    questions = above.questions

    async def refuse(_: Change) -> bytes:
        raise InvalidRequestError("not here")

    end = await above.channel("bad", refuse)
    found = await asyncio.wait_for(questions["LogSettings"](QUIET), 30)
    assert found.settings["log_info"].bool_param is False
    await asyncio.wait_for(above.was_killed.wait(), 30)
    assert above.killed == ["bad"]
    above.keeper.close()
    end.close()


async def test_one_that_dies_over_a_change_hinders_nobody() -> None:
    above = Above()
    await above.worker("good")
    end: ChangeChannel

    async def die(_: Change) -> bytes:
        end.close()
        return b""

    end = await above.channel("dying", die)
    found = await asyncio.wait_for(above.questions["LogSettings"](QUIET), 30)
    assert found.settings["log_info"].bool_param is False
    assert above.killed == []  # whoever keeps it sees that it has gone
    above.keeper.close()


async def test_one_that_comes_later_is_told_the_last_of_each_and_regions_that_lost_their_name(
    tmp_path: Path,
) -> None:
    above = Above(SharedMemoryRegions(tmp_path))
    _, first = await above.worker("first")
    CALLER_NAME.set("somebody")
    (tmp_path / "key").write_bytes(b"abcd")
    asked = pb.SystemSharedMemoryRegisterRequest(name="r", key="/key", offset=1, byte_size=3)
    await above.questions[REGISTER](asked)
    for is_on in (False, True, False):
        QUIET.settings["log_info"].bool_param = is_on
        await above.questions["LogSettings"](QUIET)
    (tmp_path / "key").unlink()
    (tmp_path / "key").write_bytes(b"zzzz")
    logging.getLogger().setLevel(logging.INFO)  # as in a process of its own
    _, later = await above.worker("later")
    assert os.pread(later.region("r").fd, 3, 1) == b"bcd"
    assert later.region("r").request() == asked
    CALLER_NAME.set("somebody else")
    for regions in (first, later):
        with pytest.raises(NotFoundError):
            regions.region("r")
    CALLER_NAME.set("somebody")
    assert logging.getLogger().level == logging.WARNING
    os.fstat(later.region("r").fd)
    above.keeper.close()


async def test_without_anybody_above_nothing_is_changed() -> None:
    above = Above()
    link, _ = await above.worker("orphan")
    questions = above.questions
    above.keeper.close()
    with pytest.raises(NotReadyError, match="the gateway supervisor exited"):
        await asyncio.wait_for(questions["LogSettings"](QUIET), 30)
    assert logging.getLogger().level == logging.INFO
    found = await questions["LogSettings"](pb.LogSettingsRequest())  # reading needs nobody
    assert found.settings["log_info"].bool_param is True
    link.close()


async def test_what_changes_the_fleet_is_answered_once_all_workers_see_it() -> None:
    above = Above()
    asked, seen = asyncio.Event(), asyncio.Event()

    async def follow(request: Any) -> None:
        assert request.model_name == "m"
        asked.set()
        await seen.wait()

    await above.worker("slow", follow)
    await above.worker("asked")
    questions = above.questions
    request = pb.RepositoryModelUnloadRequest(model_name="m")
    answer = asyncio.ensure_future(questions[UNLOAD](request))
    await asyncio.wait_for(asked.wait(), 30)
    # Nothing else waits for that meanwhile.
    await asyncio.wait_for(questions["LogSettings"](QUIET), 30)
    assert not answer.done()
    seen.set()
    assert await asyncio.wait_for(answer, 30) == pb.RepositoryModelUnloadResponse()
    above.keeper.close()


async def test_a_worker_that_does_not_see_it_in_time_is_told_of_and_lives() -> None:
    above = Above()

    async def follow(_: Any) -> None:
        raise NotReadyError("not seen")

    await above.worker("blind", follow)
    await above.worker("asked")
    with pytest.raises(NotReadyError, match="not seen"):
        await asyncio.wait_for(above.questions[UNLOAD](pb.RepositoryModelUnloadRequest()), 30)
    assert above.killed == []
    above.keeper.close()
