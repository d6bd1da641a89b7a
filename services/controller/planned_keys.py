"""Which engines the nodes that are there should have: told by the build loop, read by metrics."""

from services.contracts.registry import Registry
from services.controller.build_view import FleetView, distinct_pools


class PlannedKeys:
    """The keys of the plans that hold now; one thread shows them, any may read.

    Attributes:
        moment: the store as it was when they were read; None before.
    """

    moment: Registry | None = None

    def __init__(self) -> None:
        """Nothing is known before the first `show`."""
        self._digests: dict[tuple[str, int], frozenset[str]] | None = None

    def show(self, view: FleetView, moment: Registry | None = None) -> None:
        """Take the plans for the nodes of a view: what no node asks for any more is left out.

        Args:
            view: of the fleet.
            moment: the store that it was read from.
        """
        self.moment = moment
        pools = distinct_pools(view.pools)
        self._digests = {
            (version.name, version.version): frozenset(
                planned.digest
                for pool in pools
                if (plan := view.plan_of(version, pool)) is not None
                for planned in plan.planned
            )
            for version in view.versions
        }

    def all(self) -> frozenset[str]:
        """Digests of the keys of all versions."""
        return frozenset().union(*(self._digests or {}).values())

    def of(self, model: str, version: int) -> frozenset[str] | None:
        """Digests of a version's keys; None while nobody has shown any."""
        digests = self._digests
        return None if digests is None else digests.get((model, version), frozenset())
