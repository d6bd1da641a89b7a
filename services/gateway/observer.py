"""What the outside learns of each change: health by model, and a gauge of ready replicas."""

from collections import Counter

from services.gateway.endpoints import EndpointSet
from services.gateway.health import HealthServicer
from services.gateway.routing import RoutingTable
from services.telemetry import catalog
from services.telemetry.recorder import Recorder


class FleetObserver:
    """Publishes the routing table after each change."""

    def __init__(self, health: HealthServicer, recorder: Recorder) -> None:
        self._health, self._recorder = health, recorder
        self._gauges: set[tuple[str, str, str]] = set()

    async def follow(self, endpoints: EndpointSet) -> None:
        """Publish until cancelled; changes that come together are published once."""
        while True:
            changed = endpoints.changed
            self.publish(endpoints.table)
            await changed.wait()

    def publish(self, table: RoutingTable) -> None:
        """Say what is ready now; what was said before and is gone becomes 0."""
        self._health.show(table)
        ready = Counter(
            (pool.model, pool.version, endpoint.replica.generation)
            for (_, version), pool in table.pools.items()
            if version  # the empty version is one of the others
            for endpoint in pool.endpoints
        )
        self._gauges |= ready.keys()
        for model, version, generation in self._gauges:
            self._recorder.set(
                catalog.REPLICAS_READY,
                ready[model, version, generation],
                model=model,
                version=version,
                generation=generation,
            )
