"""Counted requests beside the demo's builds."""

import threading

import pytest

from services.cli.demo.traffic import Counts, DemoTraffic
from services.contracts.errors import NotReadyError

WAIT_S = 30.0


class Model:
    """Answers until it is broken; a test waits until it was asked so often."""

    def __init__(self) -> None:
        self.is_broken = False
        self._num_asked = 0
        self._asked = threading.Condition()

    def ask(self) -> None:
        with self._asked:
            self._num_asked += 1
            self._asked.notify_all()
        if self.is_broken:
            raise NotReadyError("it is gone")

    def wait_asked(self, more: int) -> None:
        """Return once it was asked so often again; the last of them may not have its answer."""
        with self._asked:
            wanted = self._num_asked + more
            assert self._asked.wait_for(lambda: self._num_asked >= wanted, WAIT_S)


def test_answers_and_failures_are_counted_apart() -> None:
    model = Model()
    with DemoTraffic(lambda: None, model.ask, period_s=0.0) as traffic:
        model.wait_asked(3)
        before = traffic.counts()
        assert (before.num_failed, before.last_fault) == (0, "")
        assert before.first_p50_s is not None
        assert traffic.answered_at is not None
        model.is_broken = True
        model.wait_asked(3)
        after = traffic.counts()
    assert after.num_failed >= 1
    assert after.num_requests > before.num_requests
    assert after.last_fault == "it is gone"


def test_nothing_is_asked_before_the_model_serves() -> None:
    model, is_served = Model(), threading.Event()
    with DemoTraffic(lambda: assert_set(is_served), model.ask, period_s=0.0) as traffic:
        assert traffic.counts() == Counts()
        is_served.set()
        model.wait_asked(1)


def assert_set(event: threading.Event) -> None:
    assert event.wait(WAIT_S)


def test_a_model_that_cannot_serve_is_an_error_and_no_failed_request() -> None:
    def refuse() -> None:
        raise NotReadyError("no fallback can serve it")

    with (
        DemoTraffic(refuse, Model().ask) as traffic,
        pytest.raises(NotReadyError, match="no fallback can serve it"),
    ):
        count_for_ever(traffic)


def count_for_ever(traffic: DemoTraffic) -> None:
    while True:
        assert traffic.counts() == Counts()


def test_the_line_has_the_first_answers_beside_the_newest() -> None:
    counts = Counts(num_requests=9, num_failed=0, first_p50_s=0.04, p50_s=0.004)
    assert counts.words == "9 requests, 0 failed, median 40 ms at the start, 4 ms now"
    assert Counts(num_requests=1).words == "1 request, 0 failed"
    assert Counts().words == "0 requests, 0 failed"
