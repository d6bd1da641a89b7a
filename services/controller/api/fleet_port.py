"""The controller's gRPC port: TLS with rotated certificates, and the fleet's token."""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc

from services.contracts.security.fleet_dialer import HEADER
from services.contracts.security.fleet_security import FleetTls, FleetTokens, warn_in_the_clear

if TYPE_CHECKING:
    # gRPC's classes are generic for type checkers alone.
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]

logger = logging.getLogger(__name__)

_SERVICE: Final = "/smelt.fleet.v1.FleetControl/"


def listen(server: grpc.aio.Server, address: str, tls: FleetTls | None) -> int:
    """Have a server listen, by TLS with the newest certificates or in the clear.

    Args:
        server: not yet started.
        address: `HOST:PORT`; port 0 takes a free one.
        tls: None listens in the clear, with a warning unless the host is a loopback address.

    Returns:
        The port.

    Raises:
        RuntimeError: the address is not available.
    """
    if tls is None:
        warn_in_the_clear("the controller", address.rpartition(":")[0])
        return server.add_insecure_port(address)
    return server.add_secure_port(address, _server_credentials(tls))


def token_guards(tokens: FleetTokens | None) -> "list[grpc.aio.ServerInterceptor[Any, Any]]":
    """Interceptors of a controller's server: none where the fleet has no token."""
    return [_TokenGuard(tokens)] if tokens else []


class _TokenGuard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg] # for checkers alone
    """Admits calls of FleetControl with the fleet's token alone; health is for all."""

    def __init__(self, tokens: FleetTokens) -> None:
        self._tokens = tokens

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler":
        """The RPC's own handler, or one that refuses."""
        handler = await continuation(handler_call_details)
        # gRPC has none for an unknown method, and answers UNIMPLEMENTED.
        if handler is None or not handler_call_details.method.startswith(_SERVICE):
            return handler  # type: ignore[return-value] # its types hide that
        metadata = dict(handler_call_details.invocation_metadata or ())
        if self._tokens.admit(str(metadata.get(HEADER, ""))):
            return handler
        logger.warning(
            "%s refused: the call has not the fleet's token", handler_call_details.method
        )
        return _refusing(handler)


def _refusing(handler: "Handler") -> "Handler":
    async def refuse(_: Any, context: "Context") -> None:
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED,
            f"the controller wants the fleet's token: '{HEADER}: Bearer TOKEN'; name the "
            "file with it: SMELT_FLEET_TOKEN_FILE (fleet_token_file in a process's own settings)",
        )

    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)


def _server_credentials(tls: FleetTls) -> grpc.ServerCredentials:
    given = tls.pems()

    def newest() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC, from a thread of its own, at each new connection."""
        nonlocal given
        found = tls.pems()
        if found == given:
            return None
        given = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(given),
        newest,  # type: ignore[arg-type] # gRPC documents None: nothing is new
        require_client_authentication=True,
    )


def _configuration(pems: tuple[bytes, bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    cert, key, ca = pems
    return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)
