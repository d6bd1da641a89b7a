"""Keeps the connection to one replica for as long as the controller lists it as ready."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from services.contracts.errors import NotReadyError
from services.contracts.process.backoff import Backoff
from services.gateway.routing.fleet_view import ReplicaInfo
from services.gateway.upstream.endpoint import Endpoint
from services.gateway.upstream.external_connection import ExternalConnection
from services.gateway.upstream.replica_connection import ReplicaConnection

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 1.0
PING_EVERY_S: Final = 2.0
# Longer than an engine may hold the interpreter while it loads.
PING_TIMEOUT_S: Final = 10.0
# Whom the controller too gets no answer from may stand still. It is connected to anew like any
# other, and is back once it answers the greeting, which it does not while it stands still.
UNSEEN_TIMEOUT_S: Final = 3.0


Connection = ReplicaConnection | ExternalConnection


class Connect(Protocol):
    """Opens a connection to an address; see `replica_connection.connect`."""

    def __call__(self, address: str, *, token: bytes) -> Awaitable[Connection]:
        """Open it; raises a SmeltError when that fails."""
        ...


class ReplicaHolder:
    """Connects, reconnects and disconnects.

    Attributes:
        endpoint: present while the connection is open.
    """

    def __init__(
        self, replica: ReplicaInfo, *, host_id: str, connect: Connect, on_change: Callable[[], None]
    ) -> None:
        """Connect in the background.

        Args:
            replica: addresses and token of the replica.
            host_id: of this host, which decides the address that is tried first.
            connect: opens a connection.
            on_change: is called when the connection is open, and when it is lost.
        """
        self.endpoint: Endpoint | None = None
        self._replica = replica
        self._addresses = preferred_addresses(replica, host_id)
        self._connect = connect
        self._on_change = on_change
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._last_fault = ""
        self._task: asyncio.Task[None] | None = asyncio.create_task(
            self._hold(), name=f"hold {replica.replica_id}"
        )

    def may_keep(self, replica: ReplicaInfo) -> bool:
        """Whether this is also the way to the replica as it is now described."""
        known = self._replica
        return (known.addresses, known.token) == (replica.addresses, replica.token)

    def update(self, replica: ReplicaInfo) -> None:
        """Take over new facts of the same replica, such as its engine."""
        self._replica = replica
        if self.endpoint:
            self.endpoint.replica = replica

    def drop(self, endpoint: Endpoint) -> None:
        """Forget an endpoint whose connection failed; nothing if it is forgotten already."""
        if self.endpoint is endpoint:
            self.endpoint = None
            self._on_change()

    def release(self) -> None:
        """Stop; requests that are out still get their answers, or fail when the connection ends."""
        if self._task:
            self._task.cancel()
        # What cancelled it holds its frame, and that holds us and the connection with its buffers:
        # a cycle would keep them until garbage is collected, which is late.
        self._task = None
        if self.endpoint:
            self.endpoint.retire()
            self.endpoint = None

    async def _hold(self) -> None:
        name = self._replica.replica_id
        while True:
            connection = await self._connect_somehow()
            if connection is not None:
                self._backoff.reset()
                endpoint = Endpoint(replica=self._replica, connection=connection)
                self.endpoint = endpoint
                self._on_change()
                # Not ended by `release`: answers may be outstanding. Its timers hold a reference.
                watch = asyncio.create_task(self._until_lost(connection), name=f"watch {name}")
                await asyncio.shield(watch)
                logger.warning("replica %s: connection lost", name)
                self.drop(endpoint)
            await self._backoff.pause()

    async def _until_lost(self, connection: Connection) -> None:
        """Wait; a process that is stopped keeps its connection open, so PING is sent."""
        lost = asyncio.ensure_future(connection.wait_lost())
        try:
            while not (await asyncio.wait((lost,), timeout=PING_EVERY_S))[0]:
                await self._wait_responsive(connection)
        except TimeoutError:
            logger.warning(
                "replica %s: no answer to PING and no traffic for %.0f s",
                self._replica.replica_id,
                self._timeout_s,
            )
            connection.abort()
        except NotReadyError:
            pass  # it was lost while we asked
        finally:
            lost.cancel()

    async def _wait_responsive(self, connection: Connection) -> None:
        """Return once it answers; raises TimeoutError when for long nothing moved either."""
        answer = asyncio.ensure_future(connection.ping())
        traffic = connection.traffic()
        silent_s = 0.0
        try:
            while not (await asyncio.wait((answer,), timeout=PING_EVERY_S))[0]:
                before = traffic
                traffic = connection.traffic()
                if traffic.has_progressed_since(before):
                    # What we asked, or the answer, waits behind large requests.
                    silent_s = 0.0
                    continue
                # Not by the clock: where this process itself stood still, it has not looked yet.
                silent_s += PING_EVERY_S
                if silent_s >= self._timeout_s:
                    raise TimeoutError
            answer.result()
        finally:
            answer.cancel()
            # Its error's traceback holds this frame: a cycle would keep the connection.
            del answer

    @property
    def _timeout_s(self) -> float:
        return UNSEEN_TIMEOUT_S if self._replica.is_stale else PING_TIMEOUT_S

    async def _connect_somehow(self) -> Connection | None:
        faults = []
        for address in self._addresses:
            try:
                return await self._connect(address, token=self._replica.token)
            except Exception as error:  # whatever it is, the next attempt comes
                faults.append(f"{address}: {error}")
        words = "; ".join(faults)
        # A replica that was lost is tried each second, for as long as the controller lists it.
        level = logging.DEBUG if words == self._last_fault else logging.INFO
        logger.log(level, "replica %s: cannot connect: %s", self._replica.replica_id, words)
        self._last_fault = words
        return None


def preferred_addresses(replica: ReplicaInfo, host_id: str) -> tuple[str, ...]:
    """Addresses worth trying, best first: a unix socket only on the replica's own host."""
    is_same_host = replica.host_id == host_id
    usable = [a for a in replica.addresses if is_same_host or not a.startswith("unix:")]
    usable.sort(key=lambda address: not address.startswith("unix:"))
    return tuple(usable)
