"""A TCP port whose connections begin with the fleet's TLS handshake.

Unlike asyncio's own servers it takes the newest certificate for each connection, and says of
each one that it refuses who it was and why; a peer without TLS gets the reason in the clear.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from services.contracts.errors import InvalidRequestError
from services.contracts.security.fleet_security import FleetTls
from services.contracts.transport.frame_protocol import FrameProtocol
from services.contracts.transport.frames import CONNECTION_ID, Kind, encode_error, header
from services.replica.closing import close_all, ended

logger = logging.getLogger(__name__)

# How long a peer may take for its close_notify.
_SHUTDOWN_TIMEOUT_S = 1.0
# Of handshakes that fail because the peer began without TLS.
_IN_THE_CLEAR = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE")


class TlsPort:
    """Listens from the start on; use within one event loop.

    Attributes:
        port: the number of the TCP port.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: FleetTls,
        accepted: Callable[[], FrameProtocol],
        handshake_timeout_s: float,
    ) -> None:
        """Listen.

        Args:
            host: address of the interface; one with a colon is IPv6.
            port: 0 takes a free one.
            tls: contexts of the newest certificates.
            accepted: makes the protocol of a connection whose handshake succeeded.
            handshake_timeout_s: how long a peer may take for it.

        Raises:
            OSError: the address cannot be had.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, port), family=family)
        self._listening.setblocking(False)
        self.port = int(self._listening.getsockname()[1])
        self._tls = tls
        self._accepted = accepted
        self._handshake_timeout_s = handshake_timeout_s
        self._handshakes: set[asyncio.Task[None]] = set()
        self._task = asyncio.get_running_loop().create_task(self._accept(), name="TLS data port")

    async def close(self) -> None:
        """Take no more connections; those that are open stay."""
        await close_all(partial(ended, self._task), *(partial(ended, t) for t in self._handshakes))
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                taken, peer = await loop.sock_accept(self._listening)
            except OSError as error:
                # The peer is gone again, or there are no descriptors left for the moment.
                logger.warning("data connection lost before it began: %s", error)
                await asyncio.sleep(0.1)
                continue
            task = loop.create_task(self._handshake(taken, peer))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, taken: socket.socket, peer: Any) -> None:
        try:
            spare = taken.dup()
        except OSError as error:
            logger.warning("data connection from %s lost before it began: %s", peer, error)
            taken.close()
            return
        connection = self._accepted()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                taken,
                ssl=self._tls.server_context(),
                ssl_handshake_timeout=self._handshake_timeout_s,
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
        "data port: this replica takes TLS alone; give the gateway the fleet's certificate: "
        "SMELT_GATEWAY_FLEET_CERT_FILE, _KEY_FILE and _CA_FILE"
    )
    meta, payload = encode_error(refusal)
    try:
        peer.send(header(Kind.ERROR, CONNECTION_ID, len(meta), len(payload)) + meta + payload)
    except OSError as gone:
        logger.debug("the peer did not wait for the reason: %s", gone)
