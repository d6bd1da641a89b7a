"""Connections to external servers, of the controller that checks them and of gateways."""

from typing import TYPE_CHECKING, Final

import grpc

from services.contracts.external.external_model import ExternalModel

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT_S: Final = 3.0
# Less than the 5 s after which uvicorn, which most such servers are, closes a silent connection.
_KEEP_ALIVE_S: Final = 4.0
_ASKED: Final = "/inference.GRPCInferenceService/"
_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Each has its own connection, whose state is then that of this server alone.
    ("grpc.use_local_subchannel_pool", 1),
)


def http_session() -> "aiohttp.ClientSession":
    """For requests to all OpenAI servers; call it in the event loop."""
    # Here, as processes without such a server need not import it.
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"accept-encoding": "identity", "user-agent": "smelt"},
    )


def kserve_channel(model: ExternalModel) -> grpc.aio.Channel:
    """To a server of KServe v2; nothing is connected yet."""
    address = "{}:{}".format(*model.place)
    if model.is_tls:
        credentials = grpc.ssl_channel_credentials()
        return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


def kserve_path(rpc: str) -> str:
    """The full name of an RPC."""
    return _ASKED + rpc


def one_line(text: object, most: int = 200) -> str:
    """What a server said, short and in one line, to be quoted in an error."""
    words = " ".join(str(text).split())
    return words if len(words) <= most else f"{words[:most]}..."
