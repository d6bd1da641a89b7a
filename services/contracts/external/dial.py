"""Connections to external servers, of the controller that checks them and of gateways."""

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from services.contracts.errors import ExternalServerError
from services.contracts.external.external_model import ExternalModel

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT_S: Final = 3.0
# Libraries are imported where they are used: most processes have no such server.
# Less than the 5 s after which uvicorn, which most such servers are, closes a silent connection.
_KEEP_ALIVE_S: Final = 4.0
_OPTIONS: Final = (
    # Of a stream whose answers are not asked for: gRPC's own estimate of a window lets a server
    # send 100 MiB and more. One that is asked for may send all of its next answer.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 512 << 10),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Each has its own connection, whose state is then that of this server alone.
    ("grpc.use_local_subchannel_pool", 1),
)


def token_headers(model: ExternalModel, folder: Path | None) -> dict[str, str]:
    """What each request is sent with; raises ExternalServerError where the token is not there."""
    if not model.token:
        return {}
    # Read for each request: tokens are rotated.
    try:
        # A name of this folder and no path: who may write the store must not have this process
        # send any file of its host to a server.
        token = ((folder or Path("/nowhere")) / model.token).read_text("ascii").strip()
        if not token.isprintable():
            raise ValueError("it is of several lines, or has control characters")
    except (OSError, ValueError) as error:
        raise ExternalServerError(
            f"model '{model.name}': token '{model.token}' is not available: {error}; name the "
            "folder that has it: SMELT_GATEWAY_EXTERNAL_TOKEN_DIR, and the same for the controller"
        ) from error
    return {"authorization": f"Bearer {token}"}


def http_session() -> "aiohttp.ClientSession":
    """For requests to all OpenAI servers; call it in the event loop."""
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, keepalive_timeout=_KEEP_ALIVE_S, ssl=ssl.create_default_context()
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"accept-encoding": "identity", "user-agent": "smelt"},
    )


# gRPC's stubs want serialisers, which bytes do not need.
def kserve_channel(model: ExternalModel, most_bytes: int) -> Any:
    """A channel to a server of KServe v2, of answers so large; nothing is connected yet."""
    import grpc

    address = "{}:{}".format(*model.place)
    options = (*_OPTIONS, ("grpc.max_receive_message_length", most_bytes))
    if model.is_tls:
        credentials = grpc.ssl_channel_credentials(_authorities())
        return grpc.aio.secure_channel(address, credentials, options=options)
    return grpc.aio.insecure_channel(address, options=options)


def _authorities() -> bytes | None:
    """Those of SSL_CERT_FILE or of OpenSSL's own file, as for HTTP; None for gRPC's own list."""
    file = ssl.get_default_verify_paths().cafile
    return Path(file).read_bytes() if file else None


def kserve_path(rpc: str) -> str:
    """The full name of an RPC."""
    return f"/inference.GRPCInferenceService/{rpc}"


def one_line(text: object, most: int = 200) -> str:
    """A server's message, short, in one line and as text, to be quoted in an error."""
    # Cut first: of megabytes each word would be an object, and other requests would wait.
    words = " ".join(str(text)[: 10 * most].split())
    # Terminals obey control characters, and no message of gRPC takes half a surrogate.
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in words)
    return shown if len(shown) <= most else f"{shown[:most]}..."
