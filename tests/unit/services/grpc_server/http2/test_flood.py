"""How many frames that ask for nothing are too many."""

import pytest

from services.grpc_server.http2.flood import FRAME_COST, FloodGuard
from services.grpc_server.http2.frames import ErrorCode, Http2ConnectionError

BURST, PER_SECOND = 100, 10


class Clock:
    """Stands still until it is set."""

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
    guard = FloodGuard(BURST, PER_SECOND, clock)
    for _ in range(BURST):
        guard.charge()
    return guard


def test_one_more_than_the_burst_is_a_flood(spent: FloodGuard) -> None:
    with pytest.raises(Http2ConnectionError) as fault:
        spent.charge()
    assert fault.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_frame_may_cost_more(clock: Clock) -> None:
    guard = FloodGuard(BURST, PER_SECOND, clock)
    guard.charge(BURST)
    with pytest.raises(Http2ConnectionError):
        guard.charge()


def test_an_answer_pays_for_some_more(spent: FloodGuard) -> None:
    spent.pay_answer()
    for _ in range(16):
        spent.charge()
    with pytest.raises(Http2ConnectionError):
        spent.charge()


@pytest.mark.parametrize(("waited_s", "forgiven"), [(0.5, PER_SECOND // 2), (1e6, BURST)])
def test_time_forgives_no_more_than_a_burst(
    spent: FloodGuard, clock: Clock, waited_s: float, forgiven: int
) -> None:
    clock.now_s += waited_s
    for _ in range(forgiven):
        spent.charge()
    with pytest.raises(Http2ConnectionError):
        spent.charge()


def test_answers_are_not_saved_up(clock: Clock) -> None:
    guard = FloodGuard(BURST, PER_SECOND, clock)
    for _ in range(2 * BURST):
        guard.pay_answer()
    guard.charge(BURST)
    with pytest.raises(Http2ConnectionError):
        guard.charge()


@pytest.mark.parametrize("num_bytes", [FRAME_COST, 1 << 20])
def test_data_pays_for_its_own_frame_alone(spent: FloodGuard, num_bytes: int) -> None:
    spent.refund(1)
    for _ in range(1000):
        spent.charge()
        spent.refund_data(num_bytes)
    spent.charge()
    with pytest.raises(Http2ConnectionError):
        spent.charge()


def test_a_few_bytes_do_not_pay_for_their_frame(spent: FloodGuard) -> None:
    spent.refund(1)
    spent.charge()
    spent.refund_data(FRAME_COST - 1)
    with pytest.raises(Http2ConnectionError):
        spent.charge()


def test_what_was_sent_pays_for_windows(spent: FloodGuard) -> None:
    spent.pay(16_384)
    for _ in range(16_384 // FRAME_COST):
        spent.charge()
    with pytest.raises(Http2ConnectionError):
        spent.charge()
