"""Versions that the fleet has no more: what is kept of them goes after a while."""

import time
from collections.abc import Callable, Iterable
from typing import Final

# Long enough for rates over some minutes to see the end of a series.
KEEP_S: Final = 900.0


class GoneVersions:
    """Has what is kept of a version dropped once it was away for `KEEP_S`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """No version is known yet; `clock` gives monotonic seconds."""
        self._clock = clock
        self._on_drop: list[Callable[[str, str], None]] = []
        self._present: set[tuple[str, str]] = set()
        self._gone_since_s: dict[tuple[str, str], float] = {}

    def on_drop(self, drop: Callable[[str, str], None]) -> None:
        """Have this called with the model and version of which nothing is to be kept."""
        self._on_drop.append(drop)

    def observe(self, present: Iterable[tuple[str, str]]) -> None:
        """Take the models and versions that the fleet has now."""
        now = set(present)
        now_s = self._clock()
        self._gone_since_s |= dict.fromkeys(self._present - now, now_s)
        for back in self._gone_since_s.keys() & now:
            del self._gone_since_s[back]
        self._present = now

    def drop_due(self) -> None:
        """Drop what is kept of those that were away for long."""
        due_s = self._clock() - KEEP_S
        for key in [key for key, since_s in self._gone_since_s.items() if since_s <= due_s]:
            del self._gone_since_s[key]
            for drop in self._on_drop:
                drop(*key)
