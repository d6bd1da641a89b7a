"""Counts of one histogram's series, kept here: the libraries' own cost more than they count.

An observation is a search, two additions and a lock without contention. The exporter
takes a snapshot when it is asked.
"""

import time
from bisect import bisect_left
from itertools import accumulate
from threading import Lock
from typing import NamedTuple


class Exemplar(NamedTuple):
    """One observation that can be looked up: the trace it was made in."""

    trace_id: str
    value: float
    time_s: float


class BucketSnapshot(NamedTuple):
    """What was counted until now.

    Attributes:
        cumulative: observations up to each bound; one more at the end for all.
        exemplars: the newest of each bucket that has one, by the bucket's position.
    """

    cumulative: tuple[int, ...]
    total: float
    exemplars: dict[int, Exemplar]


class BucketCounts:
    """Observations by bucket, and their sum; may be shared between threads."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds` are upper ones and rise; the bucket beyond the last needs none."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._exemplars: dict[int, Exemplar] = {}
        self._lock = Lock()

    def observe(self, value: float, trace_id: str = "") -> None:
        """Add one observation; one with a trace becomes its bucket's exemplar."""
        # Left: a value that equals a bound belongs to its bucket (`le`: less or equal).
        at = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[at] += 1
            self._total += value
            if trace_id:
                self._exemplars[at] = Exemplar(trace_id, value, time.time())

    def snapshot(self) -> BucketSnapshot:
        """All of one moment."""
        with self._lock:
            counts = tuple(self._counts)
            total = self._total
            exemplars = dict(self._exemplars)
        # Summed up without the lock, which requests wait for.
        return BucketSnapshot(tuple(accumulate(counts)), total, exemplars)
