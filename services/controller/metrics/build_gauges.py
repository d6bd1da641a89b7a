"""What the build loop does now, as gauges."""

from collections import Counter
from collections.abc import Iterable

from services.contracts.builds.build_plan import TaskStart
from services.controller.build.build_policy import Decision
from services.telemetry import catalog
from services.telemetry.recorder import Recorder
from services.telemetry.shown_gauge import ShownGauge


class BuildGauges:
    """Shows one decision after another; what is over shows 0."""

    def __init__(self, recorder: Recorder) -> None:
        self._lease = ShownGauge(recorder, catalog.CONTROLLER_BUILDS)
        self._running = ShownGauge(recorder, catalog.BUILDS_RUNNING)
        self._waiting = ShownGauge(recorder, catalog.BUILDS_WAITING)
        self._quarantined = ShownGauge(recorder, catalog.KEYS_QUARANTINED)
        self._without_engine = ShownGauge(recorder, catalog.GENERATIONS_WITHOUT_ENGINE)

    def show_lease(self, *, is_held: bool) -> None:
        """Show whether this controller is the one of its store that builds."""
        self._lease.show({(): float(is_held)})

    def show(
        self, decision: Decision, running: Iterable[TaskStart], waiting: Iterable[TaskStart]
    ) -> None:
        """Set the gauges; series that were set before and are not now become 0.

        Args:
            decision: has what is quarantined, and where nothing is proven.
            running: tasks that were launched and have not ended.
            waiting: those of them that wait for a node.
        """
        self._running.show(Counter(map(_subject, running)))
        self._waiting.show(Counter(map(_subject, waiting)))
        self._quarantined.show(Counter((q.model, q.generation) for q in decision.quarantined))
        lacking = decision.without_engine
        self._without_engine.show(
            {where: float(where in lacking) for where in lacking | decision.with_engine}
        )


def _subject(start: TaskStart) -> tuple[str, ...]:
    return start.model, start.node_class.generation
