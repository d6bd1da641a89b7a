"""Which address a replica announces when its port listens on all interfaces."""

import socket

import psutil
import pytest

from services.contracts.errors import NotReadyError
from services.replica.reporting.announced import address_towards, is_wildcard

OWN = [
    address.address
    for addresses in psutil.net_if_addrs().values()
    for address in addresses
    if address.family is socket.AF_INET
]


@pytest.mark.parametrize("own", OWN)
def test_it_is_that_of_the_interface_towards_the_peer(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the host's own name is an alias of."""
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert address_towards(f"{own}:1") == own


def test_a_peer_that_cannot_be_found_is_named() -> None:
    with pytest.raises(NotReadyError, match=r"'no\.such\.invalid:1' cannot be resolved"):
        address_towards("no.such.invalid:1")


def test_all_interfaces_are_no_address() -> None:
    assert is_wildcard("0.0.0.0")
    assert is_wildcard("::")
    assert not is_wildcard("127.0.0.1")
