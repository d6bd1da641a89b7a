"""One replica that requests can be sent to now."""

import time
from dataclasses import dataclass, field

from services.contracts.transport.frames import Payload
from services.gateway.routing.fleet_view import ReplicaInfo
from services.gateway.upstream.external_connection import ExternalConnection
from services.gateway.upstream.replica_connection import ReplicaConnection


@dataclass(eq=False, kw_only=True, slots=True)
class Endpoint:
    """A replica with an open connection.

    Attributes:
        num_outstanding: requests sent by this gateway and not yet answered.
        is_retired: no further requests come; the connection closes with the last answer.
        opened_s: time.monotonic() when the connection was opened.
        weight: its share of the load relative to the others of its pool, once it is warm.
        cost: what one more request costs here, relative to the others; low where it is fast.
        num_failures: answers in a row that were a fault of the replica.
        num_answers, answers_took_s: requests that ended since the last look whether it
            is slow, and how long they took.
        used_s: time.monotonic() when the last request was sent.
        num_slow_looks: looks in a row that found it slow.
        ejected_until_s: time.monotonic() before which it is not chosen; 0 for one that may be.
        num_ejections: recent ones, each of which makes the next one longer.
    """

    replica: ReplicaInfo
    connection: ReplicaConnection | ExternalConnection
    num_outstanding: int = 0
    is_retired: bool = False
    opened_s: float = field(default_factory=time.monotonic)
    weight: float = 1.0
    cost: float = 1.0
    num_failures: int = 0
    num_answers: int = 0
    answers_took_s: float = 0.0
    used_s: float = 0.0
    num_slow_looks: int = 0
    ejected_until_s: float = 0.0
    num_ejections: int = 0

    async def infer(self, body: Payload, timeout_s: float | None, *, trace: str) -> Payload:
        """Send one request and count it while it is outstanding; raises what the connection raises.

        Args:
            body: a serialised ModelInferRequest.
            timeout_s: None waits without end.
            trace: the client's request id, cut short, for the replica's log; of a traced request
                the trace.

        Returns:
            A serialised ModelInferResponse.
        """
        self.num_outstanding += 1
        try:
            answer = await self.connection.infer(body, timeout_s, trace=trace)
        finally:
            self.num_outstanding -= 1
            if self.is_retired:
                self._close_if_done()
        self.num_failures = 0
        return answer

    def retire(self) -> None:
        """Let the answers come in that are still owed, then close."""
        self.is_retired = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.is_retired and self.num_outstanding == 0:
            self.connection.close()
