"""The port that workers share, and when it is not theirs to share."""

import socket

import pytest

from services.contracts.errors import InvalidRequestError
from services.gateway.workers import reserved_port


def test_a_reserved_port_takes_listeners_that_share_it_and_no_others() -> None:
    with reserved_port("127.0.0.1", 0) as held:
        address = held.getsockname()
        with socket.socket() as sharing:
            sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sharing.bind(address)
            sharing.listen()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)


@pytest.mark.parametrize("is_sharing", [True, False])
def test_a_port_that_somebody_listens_on_is_refused(is_sharing: bool) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(is_sharing))
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InvalidRequestError, match=f"cannot share 127.0.0.1:{port}"):
            reserved_port("127.0.0.1", port)


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"cannot share 192\.0\.2\.1:0"):
        reserved_port("192.0.2.1", 0)
