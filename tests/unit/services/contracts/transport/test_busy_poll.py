"""Whether an event loop sleeps between frames: looked at where it would, in its selector."""

import asyncio
import os
import selectors
from collections.abc import Callable, Sequence

import pytest

from services.contracts.transport.busy_poll import BusyPoll

_LONG_S, _NONE_S = 10.0, 1e-9


class Selector(selectors.DefaultSelector):
    """The usual one; knows whether it was ever asked to wait."""

    has_slept = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events."""
        self.has_slept |= timeout is None or timeout > 0
        return super().select(timeout)


def sleeps(act: Callable[[], None]) -> bool:
    """Whether a loop sleeps within 20 ms after what is done in it."""
    selector = Selector()

    async def acted() -> None:
        act()
        end = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.02, end.set_result, None)
        await end

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(acted())
    return selector.has_slept


def noted(
    *waits: str, limit_s: float = _LONG_S, in_flight: Sequence[int] = (1,), is_asking: bool = True
) -> Callable[[], None]:
    """Frames of one connection, one after the other."""

    def act() -> None:
        poll = BusyPoll(limit_s, in_flight, is_asking=is_asking)
        for wait in waits:
            poll.note(wait)

    return act


def test_a_loop_of_nothing_sleeps() -> None:
    assert sleeps(lambda: None)


@pytest.mark.parametrize("waits", [("sent",), ("sent", "received"), ("sent", "received", "sent")])
def test_a_gateway_polls_for_answers_and_for_requests(waits: tuple[str, ...]) -> None:
    # The first wait of all counts from long ago: it is the second of its kind that tells.
    assert not sleeps(noted("sent", *waits))


def test_a_replica_polls_for_requests_and_not_while_its_engine_runs() -> None:
    assert not sleeps(noted("sent", "received", "sent", is_asking=False))
    assert sleeps(noted("sent", "received", is_asking=False))


def test_it_sleeps_where_the_last_wait_of_that_kind_was_long() -> None:
    assert sleeps(noted("sent", "received", "sent", limit_s=_NONE_S))


def test_it_sleeps_where_several_requests_are_under_way() -> None:
    assert sleeps(noted("sent", "received", "sent", in_flight=(1, 2)))


def test_few_processors_never_poll_and_nor_does_a_limit_of_zero() -> None:
    async def made(limit_s: float) -> BusyPoll | None:
        return BusyPoll.if_worth(limit_s, (), is_asking=True)

    assert asyncio.run(made(0.0)) is None
    assert (asyncio.run(made(_LONG_S)) is None) == (len(os.sched_getaffinity(0)) < 8)
