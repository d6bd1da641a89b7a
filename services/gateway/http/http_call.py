"""One HTTP request, and what handlers are given of it: the part of gRPC's context they use."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import grpc

from services.contracts.errors import InvalidRequestError
from services.grpc_server.calls.context import AbortError, Context
from services.grpc_server.headers.request_headers import Metadatum, timeout_from_header
from services.grpc_server.http2.connection import peer_name

if TYPE_CHECKING:
    from services.gateway.http.relay import Relay
    from services.gateway.pipeline.parts import Parts

Receive = Callable[[], Awaitable[Any]]
# Of gRPC; its gateways to HTTP take it too.
_TIMEOUT: Final = "grpc-timeout"


class HttpCall:
    """A request and its deadline.

    Attributes:
        method, path: of the request, the path decoded.
        headers: of fields that occur several times the last one.
        receive: the next event of its body, or of its end.
        send: the client's end of its answer, for one that is sent in parts.
        relay: passes it on to an external server; None where that is not to be.
        parts: that it is asked in; None where it is asked as it is.
        began_s: time.monotonic().
        on_end: what is called once it is answered.
    """

    def __init__(self, scope: Any, receive: Receive, send: Any = None) -> None:
        """Of ASGI; raises InvalidRequestError for a timeout that is none.

        Args:
            scope: of the request.
            receive: gives its body.
            send: takes its answer.
        """
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.receive = receive
        self.send = send
        self.relay: Relay | None = None
        self.parts: Parts | None = None
        self.began_s = time.monotonic()
        self.on_end: list[Callable[[], object]] = []
        self._client = scope["client"]
        self._metadata = tuple(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        )
        self.headers = dict(self._metadata)
        self._deadline_s: float | None = None
        if _TIMEOUT in self.headers:
            self._deadline_s = self.began_s + _timeout_s(self.headers[_TIMEOUT])

    @property
    def context(self) -> Context:
        """As handlers take it: they use no more of gRPC's context than is here."""
        return cast("Context", self)

    def peer(self) -> str:
        """The client's address, as gRPC names it."""
        return peer_name(self._client)

    def invocation_metadata(self) -> Sequence[Metadatum]:
        """The header fields."""
        return self._metadata

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None without one."""
        return None if self._deadline_s is None else max(self._deadline_s - time.monotonic(), 0.0)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing: Sequence[Metadatum] = ()
    ) -> NoReturn:
        """End the request with a status, always; see `ServicerContext.abort`."""
        raise AbortError(code, details, trailing)

    def end(self) -> None:
        """It is answered: whatever it holds is released."""
        for release in self.on_end:
            release()


def _timeout_s(value: str) -> float:
    try:
        return timeout_from_header(value.encode())
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error
