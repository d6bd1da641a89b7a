"""What is published of the fleet: health by model, and gauges."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from services.gateway.api.health import HealthServicer
from services.gateway.routing.endpoints import EndpointSet
from services.gateway.routing.gone_versions import GoneVersions
from services.gateway.routing.table import RoutingTable
from services.gateway.upstream.arena import RequestArena
from services.grpc_server.http2.connection import END_REASONS
from services.telemetry import catalog
from services.telemetry.recorder import Recorder

# More often than anybody scrapes.
SAMPLE_EVERY_S: Final = 0.5


class FleetObserver:
    """Publishes the routing table after each change, and load now and then.

    Attributes:
        gone: versions that the fleet has no more; what keeps state of each registers itself.
    """

    def __init__(
        self,
        health: HealthServicer,
        recorder: Recorder,
        num_in_flight: Mapping[tuple[str, str], int],
        arena: RequestArena | None = None,
    ) -> None:
        """Nothing is published yet.

        Args:
            health: shows which models are ready.
            recorder: of GATEWAY_METRICS.
            num_in_flight: by model and version, kept up to date by its owner.
            arena: of large requests; None without one.
        """
        self._arena = arena
        self._health = health
        self._recorder = recorder
        self._num_in_flight = num_in_flight
        self._gauges: set[tuple[str, str, str]] = set()
        self.gone = GoneVersions()
        self.gone.on_drop(self._drop)

    async def follow(self, endpoints: EndpointSet) -> None:
        """Publish until cancelled; changes that come together are published once."""
        for reason in END_REASONS:
            # So that the first one is a change, and not a new series.
            self._recorder.count(catalog.CONNECTIONS_ENDED, 0.0, reason=reason)
        while True:
            changed = endpoints.changed
            self.publish(endpoints.table)
            await changed.wait()

    async def sample(self) -> None:
        """Set the gauges of requests in flight and their memory at intervals, until cancelled."""
        while True:
            self.gone.drop_due()
            for (model, version), num in self._num_in_flight.items():
                self._recorder.set(catalog.REQUESTS_IN_FLIGHT, num, model=model, version=version)
            if self._arena:
                self._recorder.set(catalog.REQUEST_MEMORY, self._arena.num_taken_bytes)
                self._recorder.set(catalog.REQUEST_MEMORY_LIMIT, self._arena.num_bytes)
            await asyncio.sleep(SAMPLE_EVERY_S)

    def note_controller(self, is_connected: bool) -> None:
        """Show whether the controller is connected."""
        self._recorder.set(catalog.CONTROLLER_CONNECTED, float(is_connected))

    def note_connections(self, number: int, reason: str) -> None:
        """Record how many clients are connected, and why one of them closed; "" for none."""
        self._recorder.set(catalog.CONNECTIONS, number)
        if reason:
            self._recorder.count(catalog.CONNECTIONS_ENDED, reason=reason)

    def publish(self, table: RoutingTable) -> None:
        """Publish what is ready now; what was published before and is gone becomes 0."""
        self._health.show(table)
        models = table.view.models
        self.gone.observe((name, str(v)) for name, versions in models.items() for v in versions)
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

    def _drop(self, model: str, version: str) -> None:
        self._gauges = {gauge for gauge in self._gauges if gauge[:2] != (model, version)}
        self._recorder.forget(model=model, version=version)
