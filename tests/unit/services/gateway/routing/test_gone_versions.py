"""What a gateway keeps of versions that the fleet has no more goes after a while."""

import grpc
import pytest
from prometheus_client import CollectorRegistry

from services.gateway.observability.request_metrics import RequestMetrics
from services.gateway.pipeline.inference import InferenceCall, RequestOutcome
from services.gateway.routing.gone_versions import KEEP_S, GoneVersions
from services.telemetry.catalog import GATEWAY_METRICS
from services.telemetry.prometheus_recorder import PrometheusRecorder


class World:
    """Metrics of a gateway, with a clock that the test moves.

    Attributes:
        now_s: what the clock shows.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._collectors = CollectorRegistry()
        self.recorder = PrometheusRecorder(GATEWAY_METRICS, self._collectors)
        self.metrics = RequestMetrics(self.recorder)
        self.gone = GoneVersions(lambda: self.now_s)
        self.gone.on_drop(lambda m, v: self.recorder.forget(model=m, version=v))

    def answer(self, version: str) -> None:
        """Record a request and a refusal of one version."""
        call = InferenceCall(b"", model="m", version=version, waited_s=0.5)
        self.metrics.end(call, RequestOutcome(grpc.StatusCode.OK, duration_s=1.0))

    def versions(self) -> dict[str, int]:
        """How many series there are of each version."""
        found: dict[str, int] = {}
        for family in self._collectors.collect():
            for sample in family.samples:
                if version := sample.labels.get("version"):
                    found[version] = found.get(version, 0) + 1
        return found

    def num_answered(self, version: str) -> float | None:
        """The counter of answered requests."""
        labels = {"model": "m", "version": version, "code": "OK"}
        return self._collectors.get_sample_value("smelt_requests_total", labels)


@pytest.fixture
def world() -> World:
    made = World()
    made.gone.observe([("m", "1"), ("m", "2")])
    for version in ("1", "2"):
        made.answer(version)
    return made


def test_series_of_a_version_that_is_gone_are_dropped_after_a_while(world: World) -> None:
    before = world.versions()
    assert before["1"] == before["2"] > 30
    world.gone.observe([("m", "2")])
    world.now_s = KEEP_S - 1
    world.gone.drop_due()
    assert world.versions() == before
    world.now_s = KEEP_S
    world.gone.drop_due()
    assert world.versions() == {"2": before["2"]}


def test_a_version_that_comes_back_is_counted_again(world: World) -> None:
    world.gone.observe([])
    world.now_s = KEEP_S
    world.gone.drop_due()
    world.gone.observe([("m", "1")])
    world.answer("1")
    assert world.num_answered("1") == 1


def test_one_that_is_back_in_time_keeps_its_counts(world: World) -> None:
    world.gone.observe([])
    world.gone.observe([("m", "1")])
    world.now_s = 2 * KEEP_S
    world.gone.drop_due()
    world.answer("1")
    assert world.num_answered("1") == 2
    assert "2" not in world.versions()
