"""Which replicas are left out for a while, and for how long."""

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from services.gateway.routing.outliers import OutlierRules, OutlierWatch
from services.gateway.upstream.endpoint import Endpoint
from services.telemetry.catalog import GATEWAY_METRICS
from services.telemetry.prometheus_recorder import PrometheusRecorder

NewEndpoint = Callable[..., Endpoint]


class Watched:
    """A watch over endpoints, with a clock of its own."""

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self.now_s, self.num_changes = 1000.0, 0
        self.endpoints, self.registry = endpoints, CollectorRegistry()
        rules = OutlierRules(max_failures=3, max_slowness=4.0, first_s=5.0)
        recorder = PrometheusRecorder(GATEWAY_METRICS, self.registry)
        self.watch = OutlierWatch(
            rules, recorder, lambda _: self.endpoints, self._changed, clock=lambda: self.now_s
        )

    def _changed(self) -> None:
        self.num_changes += 1

    def fail(self, endpoint: Endpoint, times: int = 3) -> float:
        """Seconds for which it is ejected by that."""
        for _ in range(times):
            self.watch.note_failure(endpoint)
        return max(endpoint.ejected_until_s - self.now_s, 0.0)

    def look(self, *means_s: float, num: int = 20) -> list[bool]:
        """Whether each is ejected after a second in which answers took this long."""
        self.now_s += 1.0
        for endpoint, mean_s in zip(self.endpoints, means_s, strict=True):
            endpoint.num_answers, endpoint.answers_took_s = num, num * mean_s
        self.watch.look(self.endpoints)
        return [each.ejected_until_s > self.now_s for each in self.endpoints]

    def num_ejections(self, reason: str) -> float:
        labels = {"model": "minilm", "version": "1", "generation": "cpu-x86_64-v3"}
        name = "smelt_replica_ejections_total"
        return self.registry.get_sample_value(name, labels | {"reason": reason}) or 0.0


@pytest.fixture
def three(new_endpoint: NewEndpoint) -> Watched:
    return Watched([new_endpoint(name) for name in "abc"])


def test_failures_in_a_row_eject_for_twice_as_long_each_time(three: Watched) -> None:
    bad = three.endpoints[0]
    assert three.fail(bad, times=2) == 0.0
    assert three.fail(bad, times=1) == 5.0
    assert (three.num_changes, three.num_ejections("failures")) == (1, 1.0)
    assert three.fail(bad) == 5.0  # what was under way still fails
    for wanted_s in (10.0, 20.0):
        three.now_s = bad.ejected_until_s
        assert three.fail(bad) == wanted_s
    three.now_s = bad.ejected_until_s + 10.0
    three.look(0.001, 0.001, 0.001)
    assert three.fail(bad) == 40.0
    three.now_s = bad.ejected_until_s + 40.0
    three.look(0.001, 0.001, 0.001)
    assert three.fail(bad) == 5.0  # it did well for as long as it had been away


def test_one_that_fails_for_days_is_still_ejected_and_looked_at(three: Watched) -> None:
    bad = three.endpoints[0]
    bad.num_ejections = 5000
    assert three.fail(bad) == 300.0
    three.now_s = bad.ejected_until_s
    three.look(0.001, 0.001, 0.001)
    assert three.fail(bad) == 300.0


def test_half_of_them_stay(three: Watched) -> None:
    first, second, third = three.endpoints
    assert three.fail(first) == 5.0
    assert three.fail(second) == three.fail(third) == 0.0
    three.endpoints = [first]
    three.now_s = first.ejected_until_s
    assert three.fail(first, times=50) == 0.0


def test_the_one_that_is_far_slower_is_ejected_after_three_looks(three: Watched) -> None:
    assert three.look(0.010, 0.012, 0.200) == [False] * 3
    assert three.look(0.010, 0.012, 0.200) == [False] * 3
    assert three.look(0.010, 0.012, 0.200) == [False, False, True]
    assert three.num_ejections("slow") == 1.0


@pytest.mark.parametrize(
    ("means_s", "num"),
    [
        ((0.010, 0.012, 0.030), 20),  # not by enough
        ((0.0002, 0.0002, 0.002), 20),  # by nothing that anybody feels
        ((0.010, 0.012, 0.200), 5),  # of too few answers
    ],
)
def test_these_are_not_slow(three: Watched, means_s: tuple[float, ...], num: int) -> None:
    for _ in range(6):
        assert three.look(*means_s, num=num) == [False] * 3


def test_one_slow_moment_is_forgotten(three: Watched) -> None:
    for slow in (0.2, 0.2, 0.01, 0.2, 0.2, 0.01):
        assert three.look(0.010, 0.012, slow) == [False] * 3


def test_only_like_is_compared_with_like(new_endpoint: NewEndpoint) -> None:
    of_another = new_endpoint("d", generation="cuda-sm90")
    watched = Watched([new_endpoint("a"), new_endpoint("b"), of_another])
    for _ in range(6):
        assert watched.look(0.200, 0.210, 0.001) == [False] * 3
