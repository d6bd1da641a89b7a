"""How a process of the fleet calls the controller: TLS at both ends, the token each time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from services.contracts.security.fleet_security import FleetSecuritySettings, FleetTls, FleetTokens

if TYPE_CHECKING:
    import grpc

HEADER: Final = "authorization"
Options = Sequence[tuple[str, Any]]
_LASTING: Final = (
    ("grpc.max_receive_message_length", -1),
    # A controller whose host vanished closes nothing; these pings find out.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # gRPC's own pause between connects grows to two minutes; a controller is back sooner.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # This, despite its name, is how long one connect may take: 20 s by default, which is long
    # when the address has moved, and a busy host needs more than a pause.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Otherwise channels of one process share connects, and with them those pauses.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True)
class FleetDialer:
    """Opens channels to the controller; without files, in the clear and without a token.

    Attributes:
        tls: of this process; None is plain text.
        tokens: of the fleet; None sends none.
        server_name: the name in the controller's certificate; "" is that of its address.
    """

    tls: FleetTls | None = None
    tokens: FleetTokens | None = None
    server_name: str = ""

    @classmethod
    def of(cls, settings: FleetSecuritySettings) -> Self:
        """That of a process's settings; raises InvalidRequestError for files of no use."""
        return cls(FleetTls.of(settings), FleetTokens.of(settings), settings.fleet_server_name)

    def aio_channel(self, address: str) -> "grpc.aio.Channel":
        """A channel that lasts, for event loops, with the certificates as they are now."""
        import grpc

        if self.tls is None:
            return grpc.aio.insecure_channel(address, options=_LASTING)
        credentials, named = self._credentials(self.tls)
        return grpc.aio.secure_channel(address, credentials, options=(*_LASTING, *named))

    def channel(self, address: str) -> "grpc.Channel":
        """A blocking channel, for a few calls."""
        import grpc

        if self.tls is None:
            return grpc.insecure_channel(address)
        credentials, named = self._credentials(self.tls)
        return grpc.secure_channel(address, credentials, options=named)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each call carries."""
        return ((HEADER, f"Bearer {self.tokens.newest}"),) if self.tokens else ()

    def _credentials(self, tls: FleetTls) -> "tuple[grpc.ChannelCredentials, Options]":
        import grpc

        cert, key, ca = tls.pems()
        named = [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []
        return grpc.ssl_channel_credentials(ca, private_key=key, certificate_chain=cert), named
