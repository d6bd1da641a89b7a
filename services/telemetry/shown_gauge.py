"""A gauge whose set of series changes: what is gone shows 0, not its last value."""

from collections.abc import Mapping

from services.telemetry.metric import Metric
from services.telemetry.recorder import Recorder


class ShownGauge:
    """Shows one picture after another of things that come and go."""

    def __init__(self, recorder: Recorder, metric: Metric) -> None:
        self._recorder = recorder
        self._metric = metric
        self._known: set[tuple[str, ...]] = set()

    def show(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Show these values, by the values of the metric's labels in their order."""
        # prometheus_client exports each series that was ever set, with its last value.
        for key in self._known | values.keys():
            labels = dict(zip(self._metric.labels, key, strict=True))
            self._recorder.set(self._metric, values.get(key, 0.0), **labels)
        # What is gone was set to 0, and stays so.
        self._known = set(values)
