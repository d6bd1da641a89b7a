"""Whether an event loop sleeps between requests: looked at where it would, in its selector."""

import asyncio
import os
import selectors
from collections.abc import Callable

import pytest

from services.contracts.transport.busy_poll import BusyPoll

_LONG_S = 10.0
_NONE_S = 1e-9
# A request that is answered: the first wait of all counts from long ago.
ONE = ("began", "ended")


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


def noted(*events: str, limit_s: float = _LONG_S, is_asking: bool = True) -> Callable[[], None]:
    """Requests that begin and end, one after the other."""

    def act() -> None:
        poll = BusyPoll(limit_s, is_asking=is_asking)
        for event in events:
            getattr(poll, event)()

    return act


def test_a_loop_of_nothing_sleeps() -> None:
    assert sleeps(lambda: None)


def test_who_asks_polls_for_answers_and_for_its_next_request() -> None:
    assert not sleeps(noted(*ONE, "began"))
    assert not sleeps(noted(*ONE, *ONE))


def test_who_answers_polls_for_requests_and_not_while_its_engine_runs() -> None:
    assert not sleeps(noted(*ONE, *ONE, is_asking=False))
    assert sleeps(noted(*ONE, "began", is_asking=False))


def test_it_sleeps_where_the_last_wait_of_that_kind_was_long() -> None:
    assert sleeps(noted(*ONE, *ONE, limit_s=_NONE_S))


def test_it_sleeps_where_several_requests_are_under_way() -> None:
    assert sleeps(noted(*ONE, "began", "began"))
    # One of another connection runs on the engine, though this one's is answered.
    assert sleeps(noted(*ONE, "began", "began", "ended", is_asking=False))


def test_it_sleeps_after_its_limit() -> None:
    assert sleeps(noted(*ONE, *ONE, limit_s=0.005))


@pytest.mark.parametrize("limit_s", [0.0, _LONG_S])
def test_few_processors_never_poll_and_nor_does_a_limit_of_zero(limit_s: float) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:7])
    try:
        assert BusyPoll.if_worth(limit_s, is_asking=True) is None
    finally:
        os.sched_setaffinity(0, allowed)
