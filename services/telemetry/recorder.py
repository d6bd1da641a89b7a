"""One seam for recording metrics, bound to prometheus_client or to Ray.

A process makes one `Recorder` from the catalogue's tuple it needs, and records with the
catalogue's own objects: a renamed metric fails the type check, an undeclared one raises.
"""

from collections.abc import Callable
from typing import Any, Protocol

from services.telemetry.metric import Metric


class Observer(Protocol):
    """Adds observations to one series of a histogram."""

    def __call__(self, value: float, trace_id: str = "", /) -> None:
        """Add one; with the id of a trace that was kept, it can be looked up from there."""
        ...


class Recorder(Protocol):
    """Records metric values. Labels are given by name and must be the metric's own."""

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter.

        Args:
            metric: a counter of the catalogue.
            amount: 0 or more.
            **labels: values by label name, all of the metric's.
        """
        ...

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge.

        Args:
            metric: a gauge of the catalogue.
            value: in the metric's unit.
            **labels: values by label name, all of the metric's.
        """
        ...

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add one observation to a histogram.

        Args:
            metric: a histogram of the catalogue.
            value: in the metric's unit.
            **labels: values by label name, all of the metric's.
        """
        ...

    def adder(self, metric: Metric, **labels: str) -> Callable[[], None]:
        """What adds one to one series of a counter: for what each request does."""
        ...

    def observer(self, metric: Metric, **labels: str) -> Observer:
        """What adds observations to one series of a histogram: for what each request does."""
        ...

    @property
    def num_forgotten(self) -> int:
        """Grows with each `forget`: series that were looked up before may be gone."""
        ...

    def forget(self, **labels: str) -> None:
        """Drop all series that have these labels: what they are of is gone for good."""
        ...

    def publish(self) -> None:
        """Hand over what is kept here; where nothing scrapes it, call it at intervals."""
        ...


class NullRecorder:
    """Records nothing: for code that runs without a metrics endpoint."""

    num_forgotten = 0

    def forget(self, **labels: Any) -> None:
        """Ignore."""

    def count(self, metric: Metric, amount: float = 1.0, **labels: Any) -> None:
        """Ignore; see `Recorder.count`."""

    def set(self, metric: Metric, value: float, **labels: Any) -> None:
        """Ignore; see `Recorder.set`."""

    def observe(self, metric: Metric, value: float, **labels: Any) -> None:
        """Ignore; see `Recorder.observe`."""

    def adder(self, metric: Metric, **labels: Any) -> Callable[[], None]:  # noqa: ARG002
        """What ignores."""
        return lambda: None

    def observer(self, metric: Metric, **labels: Any) -> Observer:  # noqa: ARG002
        """What ignores."""
        return lambda _value, _trace_id="", /: None

    def publish(self) -> None:
        """Nothing is kept."""
