"""grpc.aio behind the methods of `GrpcServer`: for incidents, and as what that is compared with.

Handlers are the same. Of `Limits` it keeps those that gRPC's C-core has options for: it knows no
account of memory, no floods and no check of a call before its request is complete.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from services.grpc_server.limits import FRAME_BYTES, STREAM_WINDOW, Limits

if TYPE_CHECKING:
    # gRPC's classes are generic for type checkers alone.
    Handler = grpc.RpcMethodHandler[Any, Any]
    GenericHandler = grpc.GenericRpcHandler[Any, Any]
    _GenericHandler = GenericHandler
else:
    _GenericHandler = grpc.GenericRpcHandler


class _AnswersInBytes(_GenericHandler):
    """Handlers whose answers may be views of memory: grpc.aio sends bytes alone."""

    def __init__(self, inner: "GenericHandler") -> None:
        """Serve what `inner` knows."""
        self._inner = inner

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "Handler | None":
        """The handler of a call; None for a method that `inner` does not know."""
        # A named tuple at run time, which gRPC's types do not show.
        handler: Any = self._inner.service(handler_call_details)
        if handler is not None and handler.response_serializer is None:
            handler = handler._replace(response_serializer=bytes)
        return cast("Handler | None", handler)


class AioServer:
    """Serves handlers on one port, as `GrpcServer` does."""

    def __init__(self, limits: Limits | None = None) -> None:
        """Nothing listens yet."""
        self._limits = limits or Limits()
        self._handlers: list[GenericHandler] = []
        self._server: grpc.aio.Server | None = None

    def add_generic_rpc_handlers(self, handlers: "Sequence[GenericHandler]") -> None:
        """Serve these too; the first that knows a method has it."""
        self._handlers += map(_AnswersInBytes, handlers)

    def add_registered_method_handlers(
        self, service: str, handlers: "Mapping[str, Handler]"
    ) -> None:
        """Serve the methods of a service: generated code calls this beside the other."""
        self.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, dict(handlers)),)
        )

    async def start(
        self,
        host: str,
        port: int,
        *,
        tls: grpc.ServerCredentials | None = None,
        is_shared: bool = False,
    ) -> int:
        """Listen; see `GrpcServer.start` for arguments and errors."""
        # Not before: whether the port is shared is an option of gRPC's server.
        self._server = grpc.aio.server(options=[*self._options(), ("grpc.so_reuseport", is_shared)])
        self._server.add_generic_rpc_handlers(tuple(self._handlers))
        address = (
            f"[{host}]:{port}" if host.count(":") > 1 and "[" not in host else f"{host}:{port}"
        )
        try:
            if tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, tls)
        except RuntimeError as error:
            # As asyncio's servers raise it, so that the caller need not know which one it has.
            raise OSError(str(error)) from error
        await self._server.start()
        return port

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, let those that run end within the grace, and close."""
        if self._server is not None:
            await self._server.stop(grace_s)

    def _options(self) -> list[tuple[str, int]]:
        limits = self._limits
        options = {
            "max_receive_message_length": limits.max_message_bytes,
            "max_send_message_length": limits.max_message_bytes,
            "max_concurrent_streams": limits.max_streams,
            "max_metadata_size": limits.max_metadata_bytes,
            # Between the two, C-core refuses calls at random.
            "absolute_max_metadata_size": limits.max_metadata_bytes,
            "max_allowed_incoming_connections": limits.max_connections,
            "max_connection_idle_ms": _milliseconds(limits.max_connection_idle_s),
            "max_connection_age_ms": _milliseconds(limits.max_connection_age_s),
            "server_handshake_timeout_ms": _milliseconds(limits.handshake_timeout_s),
            # A host that vanished is detected within two minutes.
            "keepalive_time_ms": 60_000,
            "keepalive_timeout_ms": 60_000,
            "keepalive_permit_without_calls": 1,
            "http2.max_ping_strikes": limits.max_ping_strikes,
            "http2.min_ping_interval_without_data_ms": 1000,
            # Windows of a fixed size, as ours are, and not of C-core's estimate of the network.
            "http2.lookahead_bytes": STREAM_WINDOW,
            "http2.bdp_probe": 0,
            "http2.max_frame_size": FRAME_BYTES,
        }
        return [(f"grpc.{name}", value) for name, value in options.items()]


def _milliseconds(duration_s: float) -> int:
    """As C-core takes it, where 0, which is never, is the largest number."""
    return int(duration_s * 1000) or 2**31 - 1
