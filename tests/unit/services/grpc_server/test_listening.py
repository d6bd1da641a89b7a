"""One port for all addresses of a name."""

import socket

import pytest

from services.grpc_server.listening import close_sockets, listening_sockets


def _answer(*addresses: tuple[socket.AddressFamily, tuple[object, ...]]) -> object:
    def found(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(family, socket.SOCK_STREAM, 6, "", address) for family, address in addresses]

    return found


def test_a_name_stands_for_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    # Twice the same, as a file of hosts may say it.
    names = [(socket.AF_INET, (each, 0)) for each in ("127.0.0.1", "127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", _answer(*names))
    sockets = listening_sockets("name", 0, is_shared=False)
    try:
        (first, port), (second, same) = (each.getsockname() for each in sockets)
        assert (first, second, same) == ("127.0.0.1", "127.0.0.2", port)
    finally:
        close_sockets(sockets)


def test_addresses_of_other_hosts_are_left_out_but_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    away = (socket.AF_INET, ("192.0.2.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", _answer(away, (socket.AF_INET, ("127.0.0.1", 0))))
    (here,) = sockets = listening_sockets("name", 0, is_shared=False)
    assert here.getsockname()[0] == "127.0.0.1"
    close_sockets(sockets)
    monkeypatch.setattr(socket, "getaddrinfo", _answer(away))
    with pytest.raises(OSError, match="assign"):
        listening_sockets("name", 0, is_shared=False)


def test_a_port_that_is_taken_is_refused_and_nothing_is_kept() -> None:
    (held,) = sockets = listening_sockets("127.0.0.1", 0, is_shared=False)
    held.listen()
    with pytest.raises(OSError, match="in use"):
        listening_sockets("127.0.0.1", held.getsockname()[1], is_shared=False)
    close_sockets(sockets)
