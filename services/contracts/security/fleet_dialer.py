"""How a process of the fleet speaks to the controller: TLS at both ends, the token each time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from services.contracts.security.fleet_security import FleetSecuritySettings, FleetTls, FleetTokens

if TYPE_CHECKING:
    import grpc

HEADER: Final = "authorization"
Options = Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class FleetDialer:
    """Opens channels to the controller; without files, in the clear and without a token.

    Attributes:
        tls: of this process; None talks in the clear.
        tokens: of the fleet; None says none.
        server_name: the name in the controller's certificate; "" is that of its address.
    """

    tls: FleetTls | None = None
    tokens: FleetTokens | None = None
    server_name: str = ""

    @classmethod
    def of(cls, settings: FleetSecuritySettings) -> Self:
        """That of a process's settings; raises InvalidRequestError for files of no use."""
        return cls(FleetTls.of(settings), FleetTokens.of(settings), settings.fleet_server_name)

    def aio_channel(self, address: str, options: Options = ()) -> "grpc.aio.Channel":
        """A channel for event loops, with the certificates as they are now."""
        import grpc

        if self.tls is None:
            return grpc.aio.insecure_channel(address, options=options)
        credentials, named = self._credentials(self.tls)
        return grpc.aio.secure_channel(address, credentials, options=(*options, *named))

    def channel(self, address: str, options: Options = ()) -> "grpc.Channel":
        """A blocking channel."""
        import grpc

        if self.tls is None:
            return grpc.insecure_channel(address, options=options)
        credentials, named = self._credentials(self.tls)
        return grpc.secure_channel(address, credentials, options=(*options, *named))

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each call carries."""
        return ((HEADER, f"Bearer {self.tokens.newest}"),) if self.tokens else ()

    def _credentials(self, tls: FleetTls) -> "tuple[grpc.ChannelCredentials, Options]":
        import grpc

        cert, key, ca = tls.pems()
        named = [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []
        return grpc.ssl_channel_credentials(ca, private_key=key, certificate_chain=cert), named
