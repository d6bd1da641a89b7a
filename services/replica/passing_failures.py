"""Engines that could not be had for a reason that may pass: a store, a disk, descriptors.

Without a wait each look at the store would fetch the same files again, whole, in every replica.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.contracts.backoff import wait_after

FIRST_WAIT_S = 60.0
MAX_WAIT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """What happened last, how often in a row, and until when it is let be."""

    reason: str
    num_failures: int
    until_s: float


class PassingFailures:
    """Remembers, in this process, what is to be tried again and when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Take a clock in seconds."""
        self._clock = clock
        self._by_digest: dict[str, _Failure] = {}

    def add(self, digest: str, reason: str) -> str:
        """Note a failure, to be let be for twice as long as the last one; returns the words."""
        known = self._by_digest.get(digest)
        num_failures = known.num_failures + 1 if known else 1
        wait_s = wait_after(num_failures, first_s=FIRST_WAIT_S, most_s=MAX_WAIT_S)
        words = f"{reason} (tried again after {wait_s:.0f} s)"
        until_s = self._clock() + wait_s
        self._by_digest[digest] = _Failure(reason=words, num_failures=num_failures, until_s=until_s)
        return words

    def forget(self, digest: str) -> None:
        """It could be had."""
        self._by_digest.pop(digest, None)

    def waiting(self) -> Mapping[str, str]:
        """By digest, why engines are not to be tried now."""
        now_s = self._clock()
        return {d: each.reason for d, each in self._by_digest.items() if now_s < each.until_s}
