"""Pictures of things that come and go."""

from prometheus_client import CollectorRegistry

from services.telemetry.catalog import CONTROLLER_METRICS, REPLICAS_WANTED
from services.telemetry.prometheus_recorder import PrometheusRecorder
from services.telemetry.shown_gauge import ShownGauge


def test_what_is_gone_shows_zero_and_may_come_back() -> None:
    collectors = CollectorRegistry()
    gauge = ShownGauge(PrometheusRecorder(CONTROLLER_METRICS, collectors), REPLICAS_WANTED)

    def value(model: str) -> float | None:
        return collectors.get_sample_value(REPLICAS_WANTED.name, {"model": model, "version": "1"})

    gauge.show({("a", "1"): 2, ("b", "1"): 1})
    assert (value("a"), value("b"), value("c")) == (2, 1, None)
    for _ in range(2):
        gauge.show({("b", "1"): 3})
    assert gauge._known == {("b", "1")}, "what is gone is remembered no longer than needed"
    assert (value("a"), value("b")) == (0, 3)
    gauge.show({("a", "1"): 1})
    assert (value("a"), value("b")) == (1, 0)
