"""Which generations have nodes, or had some a moment ago."""

from collections.abc import Callable, Collection, Iterable

from services.controller.interfaces import DeploymentKey, NodePool


class Generations:
    """Remembers generations for a while after their last node has gone."""

    def __init__(self, keep_s: float, clock: Callable[[], float]) -> None:
        """None is known yet; each is kept for so many seconds of the clock."""
        self._keep_s = keep_s
        self._clock = clock
        self._last_seen_s: dict[str, float] = {}
        self._known: set[str] = set()

    def look(self, pools: Iterable[NodePool], deployed: Collection[DeploymentKey]) -> None:
        """Take in the nodes of now, and what is deployed."""
        now_s = self._clock()
        here = {pool.node_class.generation for pool in pools if pool.num_nodes}
        for key in deployed:
            # What an earlier controller deployed had nodes when that one looked.
            if key.generation not in self._known:
                self._last_seen_s[key.generation] = now_s
        self._known |= here | {key.generation for key in deployed}
        self._last_seen_s |= dict.fromkeys(here, now_s)
        for generation, seen_s in list(self._last_seen_s.items()):
            if now_s - seen_s > self._keep_s:
                del self._last_seen_s[generation]

    def present(self) -> list[str]:
        """Sorted, as of the last look."""
        return sorted(self._last_seen_s)
