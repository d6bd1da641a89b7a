"""Several sources of nodes as one; what one of them cannot say now stays as it was."""

import logging
from collections.abc import Sequence

from services.contracts.errors import NotReadyError
from services.controller.seams import NodePool, NodeSource

logger = logging.getLogger(__name__)


class CombinedNodes:
    """A NodeSource over others; used by one thread at a time."""

    def __init__(self, sources: Sequence[NodeSource]) -> None:
        """Nothing is asked yet."""
        self._sources = sources
        self._last: list[list[NodePool] | None] = [None for _ in sources]

    def pools(self) -> list[NodePool]:
        """All pools of all sources, in their order.

        Raises:
            NotReadyError: one has never said anything yet: what there is, is not known.
        """
        for index, source in enumerate(self._sources):
            try:
                self._last[index] = source.pools()
            except NotReadyError as error:
                if self._last[index] is None:
                    raise
                logger.warning("nodes stay as they were known: %s", error)
        return [pool for known in self._last for pool in known or ()]
