"""One replica that requests can be sent to now."""

from dataclasses import dataclass

from services.gateway.fleet_view import Replica
from services.gateway.replica_connection import ReplicaConnection


@dataclass(eq=False, kw_only=True, slots=True)
class Endpoint:
    """A replica with an open connection.

    Attributes:
        num_outstanding: requests sent by this gateway and not yet answered.
        is_retired: no further requests come; the connection closes with the last answer.
    """

    replica: Replica
    connection: ReplicaConnection
    num_outstanding: int = 0
    is_retired: bool = False

    async def infer(self, body: bytes, timeout_s: float | None, *, trace: str) -> bytes:
        """Send one request and count it while it is out; raises what the connection raises.

        `trace` is the client's id of the request, cut short, for the replica's log.
        """
        self.num_outstanding += 1
        try:
            return await self.connection.infer(body, timeout_s, trace=trace)
        finally:
            self.num_outstanding -= 1
            self._close_if_done()

    def retire(self) -> None:
        """Let the answers come in that are still owed, then close."""
        self.is_retired = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.is_retired and self.num_outstanding == 0:
            self.connection.close()
