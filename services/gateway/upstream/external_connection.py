"""What connections to external servers of both protocols have in common.

A holder keeps one to each external model that the controller found ready, as it keeps those to
replicas; so all that comes before, from access to weights of versions, is the same for both.
"""

import asyncio
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.contracts.errors import ConnectionLostError, ExternalServerError
from services.contracts.external.dial import CONNECT_TIMEOUT_S, http_session
from services.contracts.external.external_model import ExternalModel, ServerProtocol
from services.contracts.external.external_token import ExternalToken
from services.contracts.transport.frame_protocol import Traffic
from services.pb import open_inference_v2_pb2 as pb
from services.telemetry.tracing import carried_trace

if TYPE_CHECKING:
    import aiohttp

    from services.gateway.upstream.kserve_connection import KserveConnection
    from services.gateway.upstream.openai_connection import OpenAiConnection

_QUIET: Final = Traffic(0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class ExternalLimits:
    """How long an external server may take, and where its token is.

    Attributes:
        first_byte_s: from a request to the head of its answer.
        idle_s: between two parts of an answer.
    """

    first_byte_s: float = 600.0
    idle_s: float = 120.0
    token_dir: Path | None = None


class ExternalConnection:
    """The gateway's side of one external model; the protocols' own are below it."""

    def __init__(self, model: ExternalModel, limits: ExternalLimits) -> None:
        """Nothing is sent yet."""
        self.model = model
        self._limits = limits
        self._token = ExternalToken(model, limits.token_dir)
        self._lost = asyncio.Event()

    async def statistics(self) -> pb.ModelStatistics:
        """What the server counted: nothing that it would tell."""
        return pb.ModelStatistics()

    async def ping(self) -> None:
        """At once: the controller checks the server."""

    async def wait_lost(self) -> None:
        """Return once the server could not be connected to."""
        await self._lost.wait()

    def traffic(self) -> Traffic:
        """Nothing of it is known here."""
        return _QUIET

    def abort(self) -> None:
        """The same as `close`: nothing is sent by itself."""
        self.close()

    def close(self) -> None:
        """No more requests come."""

    def _headers(self, trace: str) -> dict[str, str]:
        """With the token, and with the trace of a request that is traced."""
        carried = carried_trace(trace)
        if carried is None:
            return self._token.headers()
        traced = {"traceparent": carried.traceparent}
        if carried.tracestate:
            traced["tracestate"] = carried.tracestate
        return traced | self._token.headers()

    def _unreachable(self, why: object, *, may_have_run: bool) -> ConnectionLostError:
        """The error for requests; no more come until the server can be connected to again."""
        self._lost.set()
        return ConnectionLostError(
            self._words(f"cannot be reached: {why}"), may_have_run=may_have_run
        )

    def _failed(self, why: str) -> ExternalServerError:
        return ExternalServerError(self._words(why))

    def _words(self, why: str) -> str:
        return f"model '{self.model.name}': its server at {self.model.url} {why}"


class ExternalConnector:
    """Opens connections to external servers; those of HTTP share one session."""

    def __init__(self, limits: ExternalLimits) -> None:
        """Nothing is opened yet."""
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

    async def connect(self, model: ExternalModel) -> "OpenAiConnection | KserveConnection":
        """A connection, once the server's port takes one.

        Raises:
            ConnectionLostError: it does not.
        """
        host, port = model.place
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, port, family=socket.AF_UNSPEC)
        except OSError as error:
            why = f"no connection to {host}:{port}: {str(error) or 'no answer in time'}"
            raise ConnectionLostError(why, may_have_run=False) from error
        writer.close()
        # Here, as gateways without such a model need neither library.
        if model.protocol is ServerProtocol.OPENAI:
            from services.gateway.upstream.openai_connection import OpenAiConnection

            self._session = self._session or http_session()
            return OpenAiConnection(model, self._limits, self._session)
        from services.gateway.upstream.kserve_connection import KserveConnection

        return KserveConnection(model, self._limits)

    async def close(self) -> None:
        """Close all that HTTP has open."""
        if self._session:
            await self._session.close()
