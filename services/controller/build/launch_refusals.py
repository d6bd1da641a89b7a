"""Build tasks that a launcher refuses: tried again after pauses that double, and logged once."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from services.contracts.process.backoff import wait_after

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 2.0
_LAST_PAUSE_S = 300.0


@dataclass
class _Refusal:
    fault: str
    num_refusals: int
    retry_at_s: float


class LaunchRefusals:
    """When to try again what could not be launched, by the task's name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Nothing was refused; `clock` gives monotonic seconds."""
        self._clock = clock
        self._known: dict[str, _Refusal] = {}

    def may_try(self, name: str) -> bool:
        """Whether a task was not refused, or its pause is over."""
        known = self._known.get(name)
        return known is None or self._clock() >= known.retry_at_s

    def note(self, name: str, fault: str) -> None:
        """Take that a task was refused, and log it once for as long as the fault stays the same."""
        known = self._known.get(name)
        num_refusals = known.num_refusals + 1 if known else 1
        pause_s = wait_after(num_refusals, first_s=_FIRST_PAUSE_S, most_s=_LAST_PAUSE_S)
        if known is None or known.fault != fault:
            logger.error(
                "task %s cannot be launched, and is tried again after pauses of up to %g s: %s",
                name,
                _LAST_PAUSE_S,
                fault,
            )
        self._known[name] = _Refusal(fault, num_refusals, self._clock() + pause_s)

    def keep(self, names: Iterable[str]) -> None:
        """Forget all but the tasks of these names, which are due and were not launched."""
        self._known = {name: self._known[name] for name in names if name in self._known}
