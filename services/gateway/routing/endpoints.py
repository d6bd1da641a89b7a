"""The connections to all ready replicas, and the routing table over them."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from services.contracts.external.dial import http_session
from services.contracts.external.external_model import ExternalModel, ServerProtocol
from services.contracts.transport.frames import Payload
from services.gateway.pipeline.request_head import request_head_from_bytes
from services.gateway.routing.endpoint_weights import NUM_WARMING_STEPS
from services.gateway.routing.fleet_view import DiscoveredFleet, ReplicaInfo
from services.gateway.routing.table import RoutingTable, routing_table
from services.gateway.upstream.endpoint import Endpoint
from services.gateway.upstream.external_connection import (
    ExternalConnection,
    ExternalLimits,
    require_port,
)
from services.gateway.upstream.holder import Connect, ReplicaHolder

if TYPE_CHECKING:
    import aiohttp

_LIMITS = ExternalLimits()


class EndpointSet:
    """Keeps one connection to each ready replica.

    Attributes:
        table: which replicas may answer now; replaced as a whole, never changed.
        changed: is set, and replaced by a new event, when the table is.
    """

    def __init__(
        self,
        *,
        host_id: str,
        connect: Connect,
        slow_start_s: float = 0.0,
        limits: ExternalLimits = _LIMITS,
    ) -> None:
        """Begin without replicas.

        Args:
            host_id: of this host: replicas on it are reached through unix sockets.
            connect: opens a connection to a replica.
            slow_start_s: how long a replica that became ready gets less than its share.
            limits: of external servers.
        """
        self.table = RoutingTable()
        self.changed = asyncio.Event()
        self._host_id = host_id
        self._connect = connect
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None
        self._slow_start_s = slow_start_s
        self._holders: dict[str, ReplicaHolder] = {}
        self._next_look: asyncio.TimerHandle | None = None

    def apply(self, view: DiscoveredFleet) -> None:
        """Take the controller's view: connect to new replicas, let others go.

        A replica that the controller lost sight of is kept, as a cut between those two takes
        nothing from its clients. One that answers may serve, so a lost connection to it is opened
        anew until the controller forgets it; one that was not held before is not begun with.
        """
        ready = {name: replica for name, replica in view.replicas.items() if replica.is_ready}
        for name, holder in list(self._holders.items()):
            if name not in ready or not holder.may_keep(ready[name]):
                self._holders.pop(name).release()
        for name, replica in ready.items():
            if name in self._holders:
                self._holders[name].update(replica)
            elif not replica.is_stale:
                self._holders[name] = ReplicaHolder(
                    replica,
                    host_id=self._host_id,
                    connect=self._connect_of(replica),
                    on_change=self._renew,
                )
        self._renew(view)

    def _connect_of(self, replica: ReplicaInfo) -> Connect:
        model = replica.external
        if model is None:
            return self._connect
        return lambda address, *, token: self._connect_external(model)  # noqa: ARG005 - in the URL

    async def _connect_external(self, model: ExternalModel) -> ExternalConnection:
        # Here, as gateways without such a model need neither library.
        await require_port(model)
        if model.protocol is ServerProtocol.OPENAI:
            from services.gateway.upstream.openai_connection import OpenAiConnection

            self._session = self._session or http_session()
            return OpenAiConnection(model, self._limits, self._session)
        from services.gateway.upstream.kserve_connection import KserveConnection

        return KserveConnection(model, self._limits)

    def eject(self, endpoint: Endpoint) -> None:
        """Send nothing more to a replica whose connection failed, until it is open again."""
        if holder := self._holders.get(endpoint.replica.replica_id):
            holder.drop(endpoint)

    def peers_of(self, endpoint: Endpoint) -> Sequence[Endpoint]:
        """The endpoints of the same model version, itself included; empty once it is gone."""
        replica = endpoint.replica
        pool = self.table.pools.get((replica.model_name, str(replica.model_version)))
        return pool.endpoints if pool else ()

    def peers(self) -> Iterator[Sequence[Endpoint]]:
        """The endpoints of each model version."""
        for (_, version), pool in self.table.pools.items():
            if version:  # the empty version is one of the others
                yield pool.endpoints

    async def settle(self, timeout_s: float) -> None:
        """Return once the fleet is known and each ready replica connected, or time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._is_settled():
                    await self.changed.wait()

    def _is_settled(self) -> bool:
        holders = self._holders.values()
        return self.table.view.is_known and all(holder.endpoint for holder in holders)

    def renew(self) -> None:
        """Make the table anew: an endpoint was ejected, or its time came."""
        self._renew()

    def close(self) -> None:
        """Let go of every replica; requests that are out still get their answers."""
        for holder in self._holders.values():
            holder.release()
        self._holders.clear()
        self._renew()

    def is_openai(self, model: str) -> bool:
        """Whether it is an external model of an OpenAI server."""
        return self.table.speaks(model, ServerProtocol.OPENAI)

    def has_parts(self, body: Payload) -> bool:
        """Whether a request of a stream may have several answers, as external models give them."""
        if not self.table.has_external:
            return False
        return self.table.speaks(request_head_from_bytes(body).model_name, ServerProtocol.KSERVE)

    async def close_external(self) -> None:
        """Close connections to external servers; call it after `close`."""
        if self._session:
            await self._session.close()

    def _renew(self, view: DiscoveredFleet | None = None) -> None:
        endpoints = [holder.endpoint for holder in self._holders.values() if holder.endpoint]
        now_s = time.monotonic()
        self.table = routing_table(
            view or self.table.view,
            endpoints,
            now_s=now_s,
            slow_start_s=self._slow_start_s,
            former=self.table,
        )
        self.changed.set()
        self.changed = asyncio.Event()
        self._look_again(endpoints, now_s)

    def _look_again(self, endpoints: Sequence[Endpoint], now_s: float) -> None:
        """Make the next table when time alone changes this one."""
        if self._next_look:
            self._next_look.cancel()
        returns_s = [each.ejected_until_s for each in endpoints if each.ejected_until_s > now_s]
        # Shares of new replicas rise in steps, each of which is a new table.
        if any(now_s - each.opened_s < self._slow_start_s for each in endpoints):
            returns_s.append(now_s + self._slow_start_s / NUM_WARMING_STEPS)
        self._next_look = None
        if returns_s:
            loop = asyncio.get_running_loop()
            self._next_look = loop.call_later(min(returns_s) - now_s, self._renew)
