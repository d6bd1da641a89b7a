"""Build tasks that a launcher refuses: tried again after pauses that double, and logged once."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 2.0
_LAST_PAUSE_S = 300.0


@dataclass
class _Refusal:
    fault: str
    pause_s: float
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
        pause_s = min(known.pause_s * 2, _LAST_PAUSE_S) if known else _FIRST_PAUSE_S
        if known is None or known.fault != fault:
            logger.error(
                "task %s cannot be launched, and is tried again after pauses of up to %g s: %s",
                name,
                _LAST_PAUSE_S,
                fault,
            )
        self._known[name] = _Refusal(fault, pause_s, self._clock() + pause_s)

    def forget(self, name: str) -> None:
        """Take that a task was launched."""
        self._known.pop(name, None)
