"""Build tasks that wait for a place to run: why, and since when."""

import logging
from collections.abc import Callable, Iterable, Mapping

from services.contracts.builds.build_plan import TaskStart
from services.controller.interfaces import TaskState, TaskStatus

logger = logging.getLogger(__name__)


class TaskWaits:
    """Logs why a task waits, once for each reason; knows which ones have waited long."""

    def __init__(self, long_s: float, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds; what waits for `long_s` waits long."""
        self._long_s = long_s
        self._clock = clock
        self._since_s: dict[str, float] = {}
        self._details: dict[str, str] = {}

    @property
    def long(self) -> dict[str, str]:
        """Why tasks wait that do so for long, by name."""
        now_s = self._clock()
        return {
            name: self._details[name]
            for name, since_s in self._since_s.items()
            if now_s - since_s >= self._long_s
        }

    def observe(
        self, running: Iterable[TaskStart], statuses: Mapping[str, TaskStatus]
    ) -> list[TaskStart]:
        """Take in how our tasks are now; returns those that wait."""
        waiting = [start for start in running if _waits(statuses.get(start.name))]
        names = {start.name for start in waiting}
        self._since_s = {name: at for name, at in self._since_s.items() if name in names}
        self._details = {name: why for name, why in self._details.items() if name in names}
        for start in waiting:
            self._since_s.setdefault(start.name, self._clock())
            detail = statuses[start.name].detail
            if self._details.get(start.name) != detail:
                logger.info("task %s waits: %s", start.name, detail or "no reason is known")
                self._details[start.name] = detail
        return waiting


def _waits(status: TaskStatus | None) -> bool:
    return status is not None and status.state is TaskState.WAITING
