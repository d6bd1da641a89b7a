"""One seam for recording metrics, bound to prometheus_client or to Ray.

A process makes one `Recorder` from the catalogue's tuple it needs, and records with the
catalogue's own objects: a renamed metric fails the type check, an undeclared one raises.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from services.telemetry.catalog import Metric


class Recorder(Protocol):
    """Records metric values. Labels are given by name and must be the metric's own."""

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        ...

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""
        ...

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add one observation to a histogram."""
        ...

    def observer(self, metric: Metric, **labels: str) -> Callable[[float], None]:
        """What adds observations to one series of a histogram: for what each request does."""
        ...


class NullRecorder:
    """Records nothing: for code that runs without a metrics endpoint."""

    def count(self, metric: Metric, amount: float = 1.0, **labels: Any) -> None:
        """Ignore."""

    def set(self, metric: Metric, value: float, **labels: Any) -> None:
        """Ignore."""

    def observe(self, metric: Metric, value: float, **labels: Any) -> None:
        """Ignore."""

    def observer(self, metric: Metric, **labels: Any) -> Callable[[float], None]:
        """What ignores."""
        return partial(self.observe, metric, **labels)
