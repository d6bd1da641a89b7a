"""Holds a change back until it has lasted: nodes flap.

A kubelet that misses a heartbeat is NotReady for seconds, and GPU Feature Discovery writes its
labels one restart after another during a driver's upgrade. Acting on each of these would drain
replicas and start builds for nothing.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

_SeenT = TypeVar("_SeenT")


class Settling(Generic[_SeenT]):
    """What each name stands for, once it has stood for it for `settle_s`."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._settled: dict[str, _SeenT] | None = None
        self._pending: dict[str, tuple[_SeenT | None, float]] = {}

    @property
    def settled(self) -> dict[str, _SeenT]:
        """What is held to be so; empty before anything was seen."""
        return dict(self._settled or {})

    @property
    def doubted(self) -> set[str]:
        """Of what is held to be so, that which was seen to be otherwise since."""
        return self._pending.keys() & self.settled.keys()

    def observe(self, seen: Mapping[str, _SeenT], now_s: float) -> None:
        """Take all nodes as they are now; the first state counts at once."""
        if self._settled is None:
            self._settled = dict(seen)
            return
        for name in seen.keys() | self._settled.keys() | self._pending.keys():
            new = seen.get(name)
            if new == self._settled.get(name):
                self._pending.pop(name, None)
            # Another change starts the wait anew: what counts is how long this state has lasted.
            elif name not in self._pending or self._pending[name][0] != new:
                self._pending[name] = (new, now_s)

    def settle(self, now_s: float) -> None:
        """Accept what has lasted."""
        if self._settled is None:
            return
        for name, (new, since_s) in list(self._pending.items()):
            if now_s - since_s < self._settle_s:
                continue
            del self._pending[name]
            if new is None:
                self._settled.pop(name, None)
            else:
                self._settled[name] = new

    def due_in_s(self, now_s: float) -> float | None:
        """Seconds until something may settle; None when nothing is pending."""
        if not self._pending:
            return None
        earliest_s = min(since_s for _, since_s in self._pending.values())
        return max(0.0, earliest_s + self._settle_s - now_s)
