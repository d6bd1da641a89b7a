"""Several sources of nodes as one; what one of them cannot answer now stays as it was."""

import logging
import re
import threading
from collections.abc import Sequence
from dataclasses import replace

from services.contracts.errors import NotReadyError
from services.controller.interfaces import NodePool, NodeSource

logger = logging.getLogger(__name__)

_FIGURES = re.compile(r"[0-9]+")


class CombinedNodes:
    """A NodeSource over others, for any number of threads."""

    def __init__(self, sources: Sequence[NodeSource], described: Sequence[NodeSource] = ()) -> None:
        """Nothing is asked yet.

        Args:
            sources: of nodes that are there; without all of them nothing is known.
            described: of nodes that may come. A wrong description is logged, and left out until
                it is right: it must not keep from serving what is there.
        """
        self._sources = (*sources, *described)
        self._num_needed = len(sources)
        self._last: list[list[NodePool] | None] = [None for _ in self._sources]
        self._faults = ["" for _ in self._sources]
        self._lock = threading.Lock()

    def pools(self) -> list[NodePool]:
        """All pools of all sources, in their order.

        Raises:
            NotReadyError: one has never answered yet: what there is, is not known.
        """
        with self._lock:
            for index, source in enumerate(self._sources):
                try:
                    self._last[index] = source.pools()
                except NotReadyError as error:
                    if self._last[index] is None and index < self._num_needed:
                        raise
                    self._log_once(index, str(error))
                    self._last[index] = [
                        replace(pool, is_stale=True) for pool in self._last[index] or ()
                    ]
                else:
                    self._faults[index] = ""
            return [pool for known in self._last for pool in known or ()]

    def _log_once(self, index: int, fault: str) -> None:
        """Log a fault once for as long as it stays the same: syncs come every few seconds."""
        # Seconds and attempts in it grow, and make no other fault of it.
        same = _FIGURES.sub("", fault)
        if self._faults[index] != same:
            what = "are left out" if self._last[index] is None else "stay as they were known"
            logger.error("%s; its nodes %s until that is mended", fault, what)
            self._faults[index] = same
