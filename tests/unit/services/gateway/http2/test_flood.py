"""How many frames that ask for nothing are too many."""

import pytest

from services.gateway.http2.flood import BURST, PER_SECOND, FloodGuard
from services.gateway.http2.frames import ConnectionFault, ErrorCode


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spent(clock: Clock) -> FloodGuard:
    """A guard whose next frame is one too many."""
    guard = FloodGuard(clock)
    for _ in range(BURST):
        guard.spend()
    return guard


def test_one_more_than_the_burst_is_a_flood(spent: FloodGuard) -> None:
    with pytest.raises(ConnectionFault) as fault:
        spent.spend()
    assert fault.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_frame_may_cost_more(clock: Clock) -> None:
    guard = FloodGuard(clock)
    guard.spend(BURST)
    with pytest.raises(ConnectionFault):
        guard.spend()


def test_an_answer_is_room_for_some_more(spent: FloodGuard) -> None:
    spent.earn()
    for _ in range(4):
        spent.spend()
    with pytest.raises(ConnectionFault):
        spent.spend()


@pytest.mark.parametrize(("waited_s", "forgiven"), [(0.5, PER_SECOND // 2), (1e6, BURST)])
def test_time_forgives_no_more_than_a_burst(
    spent: FloodGuard, clock: Clock, waited_s: float, forgiven: int
) -> None:
    clock.now_s += waited_s
    for _ in range(forgiven):
        spent.spend()
    with pytest.raises(ConnectionFault):
        spent.spend()


def test_answers_are_not_saved_up(clock: Clock) -> None:
    guard = FloodGuard(clock)
    for _ in range(2 * BURST):
        guard.earn()
    guard.spend(BURST)
    with pytest.raises(ConnectionFault):
        guard.spend()
