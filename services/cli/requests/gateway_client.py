"""How the commands reach a gateway: in the clear or by TLS, with a token or without."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotReadyError, SmeltError

if TYPE_CHECKING:  # `smelt up` asks here for its settings, long before it calls a gateway
    import grpc


def gateway_channel(
    settings: CliSettings, address: str, options: Sequence[tuple[str, int]] = ()
) -> "grpc.Channel":
    """A channel to a gateway; use it as a context manager.

    Args:
        settings: TLS files for the gateway; without them the channel is plain text.
        address: `host:port`.
        options: of gRPC.

    Raises:
        InvalidRequestError: a TLS file cannot be read.
    """
    import grpc

    credentials = _credentials(settings)
    if credentials is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, credentials, options=options)


def gateway_aio_channel(
    settings: CliSettings, address: str, options: Sequence[tuple[str, int]] = ()
) -> "grpc.aio.Channel":
    """The same for an event loop; see `gateway_channel` for arguments and errors."""
    import grpc

    credentials = _credentials(settings)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=options)


def gateway_error(address: str, error: "grpc.RpcError", hint: str = "") -> SmeltError:
    """A gateway's status as an error, in the class that maps to it.

    Args:
        address: of the gateway, for the message.
        error: as gRPC raised it.
        hint: appended to the message.
    """
    import grpc

    from services.gateway.api.status_codes import STATUS_BY_ERROR

    status = error.code()
    details = error.details() or ""
    if "http1.x server" in details or "Failed parsing HTTP/2" in details:
        hint = "; this is an HTTP/1.1 port, not the gRPC port, which smelt status prints"
    elif "Connection refused" in details:
        hint = "; nothing listens there, and smelt status prints where the gateway does"
    # Of several errors with this status the first; those that are INTERNAL have little in common.
    classes = [each for each, its in STATUS_BY_ERROR.items() if its is status]
    is_known = classes and status is not grpc.StatusCode.INTERNAL
    error_class = classes[0] if is_known else SmeltError
    return error_class(f"gateway {address}: {status.name}: {details}{hint}")


def bearer_metadata(settings: CliSettings) -> dict[str, str]:
    """The token's header; nothing without a token."""
    return {"authorization": f"Bearer {settings.token}"} if settings.token else {}


def triton_options(settings: CliSettings) -> dict[str, Any]:
    """The same for Triton's client: keyword arguments of `InferenceServerClient`."""
    if settings.tls_ca_file is None:
        return {}
    return {
        "ssl": True,
        "root_certificates": str(settings.tls_ca_file),
        "private_key": _text(settings.tls_key_file),
        "certificate_chain": _text(settings.tls_cert_file),
    }


def require_way_in(settings: CliSettings) -> None:
    """Check that the commands can connect to a gateway that is started from this environment.

    Raises:
        NotReadyError: it would take TLS alone, and no authority is configured.
    """
    from services.contracts.process.settings import read_settings
    from services.gateway.settings import GatewaySettings

    if read_settings(GatewaySettings).tls is not None and settings.tls_ca_file is None:
        raise NotReadyError(
            "the gateway would accept TLS only (SMELT_GATEWAY_TLS_CERT_FILE), and these commands "
            "have no CA: set SMELT_TLS_CA_FILE to its PEM file"
        )


def _credentials(settings: CliSettings) -> "grpc.ChannelCredentials | None":
    if settings.tls_ca_file is None:
        return None
    import grpc

    return grpc.ssl_channel_credentials(
        root_certificates=_bytes(settings.tls_ca_file),
        private_key=_bytes(settings.tls_key_file),
        certificate_chain=_bytes(settings.tls_cert_file),
    )


def _bytes(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"TLS file {path} cannot be read: {error}") from error


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
