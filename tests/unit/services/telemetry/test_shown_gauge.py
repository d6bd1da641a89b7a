"""Pictures of things that come and go."""

from typing import cast

from prometheus_client import CollectorRegistry

from services.telemetry.catalog import CONTROLLER_METRICS, REPLICAS_WANTED
from services.telemetry.metric import Metric
from services.telemetry.prometheus_recorder import PrometheusRecorder
from services.telemetry.recorder import Recorder
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
    assert (value("a"), value("b")) == (0, 3)
    gauge.show({("a", "1"): 1})
    assert (value("a"), value("b")) == (1, 0)


class NotingRecorder:
    """Notes the models of what it is given since the last look."""

    def __init__(self) -> None:
        self.models: list[str] = []

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        self.models.append(labels["model"])

    def noted(self) -> list[str]:
        models, self.models = sorted(self.models), []
        return models


def test_what_is_gone_is_remembered_no_longer_than_needed() -> None:
    recorder = NotingRecorder()
    gauge = ShownGauge(cast("Recorder", recorder), REPLICAS_WANTED)
    told = []
    for models in ("ab", "b", "b"):
        gauge.show({(model, "1"): 1 for model in models})
        told.append(recorder.noted())
    assert told == [["a", "b"], ["a", "b"], ["b"]]
