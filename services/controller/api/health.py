"""grpc.health, by which a controller that no longer does its work is restarted."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

# A sync waits for Ray and the store at most for a minute or two, and the next one comes within
# the resync period. A controller without one for this long hangs somewhere.
MAX_SILENCE_S = 300.0


@dataclass(frozen=True)
class ControllerHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # has no stubs
    """SERVING while syncs of all loops that work end, with or without a fault.

    Attributes:
        last_sync_s: of the loop that has ended none for longest, when its last one ended, by
            `clock`: seconds of a monotonic clock.
    """

    last_sync_s: Callable[[], float]
    clock: Callable[[], float] = time.monotonic

    async def Check(  # noqa: N802 - the proto's name
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> health_pb2.HealthCheckResponse:
        """The controller as a whole, service ""; no other is known."""
        if request.service:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"service '{request.service}' is unknown; ask for ''"
            )
        is_late = self.clock() - self.last_sync_s() > MAX_SILENCE_S
        states = health_pb2.HealthCheckResponse
        return states(status=states.NOT_SERVING if is_late else states.SERVING)
