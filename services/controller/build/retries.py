"""What failed: tried again after pauses that double, and logged once."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from services.contracts.process.backoff import wait_after

logger = logging.getLogger(__name__)


@dataclass
class _Failure:
    fault: str
    num_failures: int
    retry_at_s: float


class Retries:
    """When to try again what failed, by its name."""

    def __init__(self, clock: Callable[[], float], *, first_s: float, most_s: float) -> None:
        """Nothing failed yet.

        Args:
            clock: monotonic seconds.
            first_s: pause after the first failure.
            most_s: longest pause.
        """
        self._clock = clock
        self._first_s = first_s
        self._most_s = most_s
        self._known: dict[str, _Failure] = {}

    def may_try(self, name: str) -> bool:
        """Whether it did not fail, or its pause is over."""
        known = self._known.get(name)
        return known is None or self._clock() >= known.retry_at_s

    def pauses(self) -> dict[str, bool]:
        """Whether its pause goes on, for each that failed."""
        return {name: not self.may_try(name) for name in self._known}

    def note(self, name: str, fault: str) -> None:
        """Take that it failed, and log it once for as long as the fault stays the same."""
        known = self._known.get(name)
        num_failures = known.num_failures + 1 if known else 1
        pause_s = wait_after(num_failures, first_s=self._first_s, most_s=self._most_s)
        if known is None or known.fault != fault:
            logger.error("%s; tried again after pauses of up to %g s", fault, self._most_s)
        self._known[name] = _Failure(fault, num_failures, self._clock() + pause_s)

    def keep(self, names: Iterable[str]) -> None:
        """Forget all but these, which are still to be done."""
        self._known = {name: self._known[name] for name in names if name in self._known}
