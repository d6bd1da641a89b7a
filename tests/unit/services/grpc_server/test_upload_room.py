"""Who may send a large request now, who waits, and who is not waited for."""

import asyncio
from contextvars import ContextVar

import pytest

from services.grpc_server.upload_room import Sender, Share, UnfinishedBytes, UploadRoom

CALLER: ContextVar[str] = ContextVar("caller", default="nobody")


class Uploads:
    """Requests in a room of 100 bytes.

    Attributes:
        given: names of those that were let go on later, in that order.
        idle: names of those that made no use of their room.
        callers: in whose context that was found.
        received: bytes that came, by name.
        busy: names of those of which more comes before each look.
    """

    def __init__(self, stall_timeout_s: float = 1000) -> None:
        self.room = UploadRoom(100, stall_timeout_s)
        self.given: list[str] = []
        self.idle: list[str] = []
        self.callers: list[str] = []
        self.received: dict[str, int] = {}
        self.busy: set[str] = set()
        self._shares: dict[str, Share] = {}

    def ask(self, name: str, size: int, num_sent: int = 0) -> Share:
        """One more request."""
        self.received[name] = 0
        sender = Sender(num_sent, lambda: self._num_received(name), lambda: self._end_idle(name))
        share = self.room.ask(size, lambda: self.given.append(name), sender)
        self._shares[name] = share
        return share

    def leave(self, name: str) -> None:
        """It is answered, or given up."""
        self._shares[name].leave()

    def _num_received(self, name: str) -> int:
        self.received[name] += name in self.busy
        return self.received[name]

    def _end_idle(self, name: str) -> None:
        self.idle.append(name)
        self.callers.append(CALLER.get())
        self.leave(name)


async def test_first_come_first_served() -> None:
    uploads = Uploads()
    assert [uploads.ask(name, 40).is_given for name in "abcd"] == [True, True, False, False]
    # A small one does not pass those that wait: they would wait for ever.
    assert not uploads.ask("small", 1).is_given
    uploads.leave("a")
    assert uploads.given == ["c"]
    uploads.leave("d")  # its client has left
    assert uploads.given == ["c", "small"]
    for name in ("a", "d", "b", "c", "small"):
        uploads.leave(name)
    assert uploads.ask("e", 100).is_given


async def test_one_that_is_larger_than_the_room_comes_alone() -> None:
    uploads = Uploads()
    assert uploads.ask("huge", 1000).is_given
    assert not uploads.ask("other", 1).is_given
    uploads.leave("huge")
    assert uploads.given == ["other"]
    assert not uploads.ask("huge again", 1000).is_given
    uploads.leave("other")
    assert uploads.given == ["other", "huge again"]


async def test_room_that_is_not_used_is_taken_back_while_others_wait() -> None:
    uploads = Uploads(stall_timeout_s=0.01)
    idle, _, whole = (uploads.ask(name, 30) for name in ("idle", "busy", "whole"))
    whole.is_whole = True
    await asyncio.sleep(0.05)
    assert not uploads.idle, "nobody waited"
    uploads.busy = {"busy", "waiting"}
    waiting = uploads.ask("waiting", 30)
    async with asyncio.timeout(30):
        while not waiting.is_given:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.002)
    assert (uploads.idle, uploads.given, idle.is_given) == (["idle"], ["waiting"], True)
    # The last look of the time in which somebody waited is over by then.
    await asyncio.sleep(0.05)
    uploads.busy.clear()
    await asyncio.sleep(0.05)
    assert uploads.idle == ["idle"], "nobody waits any more"


async def test_whoever_stands_still_is_ended_though_those_who_wait_give_up_sooner() -> None:
    uploads = Uploads(stall_timeout_s=0.05)
    uploads.ask("idle", 100)
    async with asyncio.timeout(30):
        while not uploads.idle:
            uploads.ask("waiting", 10)
            await asyncio.sleep(0.01)
            uploads.leave("waiting")


async def test_whoever_is_ended_is_so_in_nobodys_context() -> None:
    uploads = Uploads(stall_timeout_s=0.01)
    CALLER.set("idle")
    uploads.ask("idle", 100)
    CALLER.set("waiting")
    is_given = asyncio.Event()
    uploads.room.ask(100, is_given.set, lambda: None)
    async with asyncio.timeout(30):
        await is_given.wait()
    assert (uploads.idle, uploads.callers) == (["idle"], ["nobody"])


def test_what_is_unfinished_has_a_bound() -> None:
    unfinished = UnfinishedBytes(100)
    unfinished.count(100)
    assert not unfinished.is_full
    unfinished.count(1)
    assert unfinished.is_full
    unfinished.count(-1)
    assert not unfinished.is_full


@pytest.mark.parametrize(
    ("steps", "num_looks"),
    [
        ([100] * 20, None),  # all of it within twenty looks
        ([300, 1, 1, 300] * 5, None),  # what came before counts
        ([99] * 20, 2),
        ([300, 0], 3),
        ([1, 1, 1], 2),
    ],
    ids=["on pace", "in gusts", "too slow", "stands still", "trickles"],
)
async def test_a_request_has_to_come_in_time(steps: list[int], num_looks: int | None) -> None:
    """Or one that sends a little now and then would have others wait for hours."""
    uploads = Uploads()
    share = uploads.ask("it", 50, 2000)
    for number, step in enumerate([0, *steps], start=1):
        uploads.received["it"] += step
        share.look()
        if uploads.idle:
            assert number == num_looks
            return
    assert num_looks is None


async def test_what_turns_out_smaller_leaves_the_rest_to_others() -> None:
    uploads = Uploads()
    first, second = uploads.ask("first", 90), uploads.ask("second", 60)
    first.shrink(100)
    assert not second.is_given
    first.shrink(40)
    assert (uploads.given, first.num_bytes) == (["second"], 40)
    third = uploads.ask("third", 1)
    third.shrink(0)  # it waits, and has none to give back
    first.leave()
    first.shrink(0)
    assert uploads.given == ["second", "third"]
    assert uploads.ask("fourth", 39).is_given
    assert not uploads.ask("fifth", 1).is_given
