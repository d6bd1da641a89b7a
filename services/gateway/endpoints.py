"""The connections to all ready replicas, and the routing table over them."""

import asyncio

from services.gateway.endpoint import Endpoint
from services.gateway.fleet_view import FleetView
from services.gateway.replica_holder import Connect, ReplicaHolder
from services.gateway.routing import RoutingTable, routing_table


class EndpointSet:
    """Keeps one connection to each ready replica.

    Attributes:
        table: which replicas may answer now; replaced as a whole, never changed.
        changed: is set, and replaced by a new event, when the table is.
    """

    def __init__(self, *, host_id: str, connect: Connect) -> None:
        self.table = RoutingTable()
        self.changed = asyncio.Event()
        self._host_id, self._connect = host_id, connect
        self._holders: dict[str, ReplicaHolder] = {}

    def apply(self, view: FleetView) -> None:
        """Take over what the controller says: connect to new replicas, let others go."""
        ready = {name: replica for name, replica in view.replicas.items() if replica.is_ready}
        for name, holder in list(self._holders.items()):
            if name not in ready or not holder.fits(ready[name]):
                self._holders.pop(name).release()
        for name, replica in ready.items():
            if name in self._holders:
                self._holders[name].update(replica)
            else:
                self._holders[name] = ReplicaHolder(
                    replica, host_id=self._host_id, connect=self._connect, on_change=self._renew
                )
        self._renew(view)

    def eject(self, endpoint: Endpoint) -> None:
        """Send nothing more to a replica whose connection failed, until it is open again."""
        if holder := self._holders.get(endpoint.replica.replica_id):
            holder.drop(endpoint)

    def close(self) -> None:
        """Let go of every replica; requests that are out still get their answers."""
        for holder in self._holders.values():
            holder.release()
        self._holders.clear()
        self._renew()

    def _renew(self, view: FleetView | None = None) -> None:
        endpoints = [holder.endpoint for holder in self._holders.values() if holder.endpoint]
        self.table = routing_table(view or self.table.view, endpoints)
        self.changed.set()
        self.changed = asyncio.Event()
