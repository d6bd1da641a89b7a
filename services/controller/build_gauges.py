"""What the build loop does now, as gauges."""

from collections import Counter
from collections.abc import Iterable

from services.contracts.build_plan import TaskStart
from services.controller.build_policy import Decision
from services.telemetry import catalog
from services.telemetry.recorder import Recorder
from services.telemetry.shown_gauge import ShownGauge


class BuildGauges:
    """Shows one decision after another; what is over shows 0."""

    def __init__(self, recorder: Recorder) -> None:
        self._running = ShownGauge(recorder, catalog.BUILDS_RUNNING)
        self._quarantined = ShownGauge(recorder, catalog.KEYS_QUARANTINED)
        self._without_engine = ShownGauge(recorder, catalog.GENERATIONS_WITHOUT_ENGINE)

    def show(self, decision: Decision, running: Iterable[TaskStart]) -> None:
        """Show what runs, what was given up, and where nothing is proven."""
        self._running.show(Counter((s.model, s.node_class.generation) for s in running))
        self._quarantined.show(Counter((q.model, q.generation) for q in decision.quarantined))
        lacking = decision.without_engine
        self._without_engine.show(
            {where: float(where in lacking) for where in lacking | decision.with_engine}
        )
