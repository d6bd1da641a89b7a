"""The fleet's TLS handshake, with which connections of the data port begin.

Unlike that of asyncio's own servers it takes the newest certificate for each connection, and the
log has who was refused and why; a peer without TLS gets the reason in the clear.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from services.contracts.errors import InvalidRequestError
from services.contracts.security.fleet_security import FleetTls
from services.contracts.transport.frame_protocol import FrameProtocol
from services.contracts.transport.frames import CONNECTION_ID, Kind, encode_error, header

logger = logging.getLogger(__name__)

# How long a peer may take for its close_notify.
_SHUTDOWN_TIMEOUT_S = 1.0
# Of handshakes that fail because the peer began without TLS.
_IN_THE_CLEAR = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE")


async def fleet_handshake(
    tls: FleetTls,
    accepted: Callable[[], FrameProtocol],
    timeout_s: float,
    taken: socket.socket,
) -> None:
    """Make a connection of an accepted socket, or refuse its peer.

    Args:
        tls: contexts of the newest certificates.
        accepted: makes the protocol of the connection.
        timeout_s: how long the peer may take.
        taken: the accepted socket.
    """
    try:
        peer = taken.getpeername()
        # The loop closes what it was given.
        spare = taken.dup()
    except OSError as error:
        logger.warning("data connection lost before it began: %s", error)
        taken.close()
        return
    connection = accepted()
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection,
            taken,
            ssl=tls.server_context(),
            ssl_handshake_timeout=timeout_s,
            ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        )
    except OSError as error:
        logger.warning(
            "data connection from %s refused: it does not speak the fleet's TLS, or with no "
            "certificate that the fleet's authority signed: %s",
            peer,
            error,
        )
        _send_plain_error(spare, error)
        connection.closed(error)
    except asyncio.CancelledError:
        connection.closed(None)
        raise
    finally:
        spare.close()


def _send_plain_error(peer: socket.socket, error: OSError) -> None:
    """Send the reason in the clear to a peer that began without TLS."""
    if not isinstance(error, ssl.SSLError) or error.reason not in _IN_THE_CLEAR:
        return
    refusal = InvalidRequestError(
        "data port: this replica accepts only TLS; give the gateway the fleet's certificate: "
        "SMELT_GATEWAY_FLEET_CERT_FILE, _KEY_FILE and _CA_FILE"
    )
    meta, payload = encode_error(refusal)
    try:
        peer.send(header(Kind.ERROR, CONNECTION_ID, len(meta), len(payload)) + meta + payload)
    except OSError as gone:
        logger.debug("the peer did not wait for the reason: %s", gone)
