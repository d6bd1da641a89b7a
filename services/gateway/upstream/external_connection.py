"""What connections to external servers of both protocols have in common.

A holder keeps one to each external model that the controller found ready, as it keeps those to
replicas; so all that comes before, from access to weights of versions, is the same for both.
"""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.contracts.errors import ConnectionLostError, ExternalServerError
from services.contracts.external.dial import CONNECT_TIMEOUT_S, token_headers
from services.contracts.external.external_model import ExternalModel
from services.contracts.transport.frame_protocol import Traffic
from services.contracts.transport.frames import Payload
from services.pb import open_inference_v2_pb2 as pb
from services.telemetry.tracing import carried_trace

_QUIET: Final = Traffic(0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class ExternalLimits:
    """How long an external server may take, how much it may answer, and where its token is.

    Attributes:
        first_byte_s: from a request to the head of its answer.
        idle_s: between two parts of an answer.
        max_answer_bytes: of one message, as it is sent to the client.
    """

    first_byte_s: float = 600.0
    idle_s: float = 120.0
    max_answer_bytes: int = 2**31 - 1
    token_dir: Path | None = None


class ExternalConnection(ABC):
    """The gateway's side of one external model."""

    def __init__(self, model: ExternalModel, limits: ExternalLimits) -> None:
        """Nothing is sent yet."""
        self._model = model
        self._limits = limits
        self._lost = asyncio.Event()

    @abstractmethod
    async def infer(
        self, request: Payload, timeout_s: float | None = None, *, trace: str = ""
    ) -> Payload:
        """The answer to one request; see `ReplicaConnection.infer`."""

    async def statistics(self) -> pb.ModelStatistics:
        """What the server counted: nothing that it would tell."""
        return pb.ModelStatistics()

    async def ping(self) -> None:  # noqa: B027 - nothing is to be done
        """At once: the controller checks the server."""

    async def wait_lost(self) -> None:
        """Return once the server could not be connected to."""
        await self._lost.wait()

    def traffic(self) -> Traffic:
        """Nothing of it is known here."""
        return _QUIET

    def abort(self) -> None:
        """The same as `close`: nothing is sent without a request."""
        self.close()

    def close(self) -> None:  # noqa: B027 - where nothing is open
        """No more requests come."""

    def _headers(self, trace: str) -> dict[str, str]:
        """With the token, and with the trace of a request that is traced."""
        headers = token_headers(self._model, self._limits.token_dir)
        if carried := carried_trace(trace):
            headers["traceparent"] = carried.traceparent
            headers |= {"tracestate": carried.tracestate} if carried.tracestate else {}
        return headers

    def _unreachable(self, why: str, *, may_have_run: bool) -> ConnectionLostError:
        """The error for requests; no more come until the server can be connected to again."""
        self._lost.set()
        words = self._words(f"cannot be reached: {why}")
        return ConnectionLostError(words, may_have_run=may_have_run)

    def _failed(self, why: str) -> ExternalServerError:
        return ExternalServerError(self._words(why))

    def _words(self, why: str) -> str:
        return f"model '{self._model.name}': its server at {self._model.url} {why}"


async def require_port(model: ExternalModel) -> None:
    """Return once the server's port takes a connection; raises ConnectionLostError."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(*model.place)
    except OSError as error:
        why = "no connection to {}:{}: ".format(*model.place) + (str(error) or "no answer in time")
        raise ConnectionLostError(why, may_have_run=False) from error
    writer.close()
