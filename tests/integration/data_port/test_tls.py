"""The data port over TLS: who is let in, what the others are told, and certificates that change."""

import asyncio
import errno
import logging
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from services.contracts.errors import ConnectionLostError
from services.contracts.security.fleet_security import FleetTls
from tests.certificates import Authority, CertificateFiles

if TYPE_CHECKING:
    from tests.integration.data_port.conftest import Port

SIZES = (0, 10, 65_536, 300_000, 3_000_000)


class Fleet:
    """An authority and what it signed for a gateway and a replica."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.authority = Authority(folder, name)
        self.files = self.authority.sign(f"replica of {name}")
        self.replica = self.tls(self.files)
        self.gateway = self.tls(self.authority.sign(f"gateway of {name}"))

    def tls(self, files: CertificateFiles) -> FleetTls:
        """For an end with that certificate; looks at the files each time."""
        return FleetTls(files.cert, files.key, self.authority.cert, period_s=0)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def serial_of(files: CertificateFiles) -> int:
    """Of the certificate in a file."""
    return x509.load_pem_x509_certificate(files.cert.read_bytes()).serial_number


async def shown_serial(address: str, gateway: FleetTls) -> int:
    """Of the certificate that a new connection is shown."""
    host, port = address.split(":")
    context = gateway.client_context()
    _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="")
    shown = writer.get_extra_info("ssl_object")
    serial = x509.load_der_x509_certificate(shown.getpeercert(binary_form=True)).serial_number
    assert shown.version() == "TLSv1.3"
    writer.transport.abort()
    return serial


async def test_requests_of_all_sizes_are_answered(port: "Port", fleet: Fleet) -> None:
    address = await port.serve(tls=fleet.replica, token=b"t" * 32)
    connection = await port.connect(address, tls=fleet.gateway, token=b"t" * 32)
    requests = [bytes([size % 251]) * size for size in SIZES * 4]
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(connection.infer(request) for request in requests))
    assert answers == requests


async def test_a_unix_socket_stays_in_the_clear(port: "Port", fleet: Fleet) -> None:
    address = await port.serve(family="unix", tls=fleet.replica)
    assert await (await port.connect(address)).infer(b"plain") == b"plain"
    assert await (await port.connect(address, tls=fleet.gateway)).infer(b"too") == b"too"


async def test_the_token_is_wanted_still(port: "Port", fleet: Fleet) -> None:
    address = await port.serve(tls=fleet.replica, token=b"t" * 32)
    with pytest.raises(ConnectionLostError, match="wrong replica token"):
        await port.connect(address, tls=fleet.gateway, token=b"x" * 32)


async def test_a_gateway_in_the_clear_is_told_what_it_lacks(
    port: "Port", fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    address = await port.serve(tls=fleet.replica)
    with pytest.raises(ConnectionLostError, match="accepts only TLS.*SMELT_GATEWAY_FLEET_CERT"):
        await port.connect(address)
    assert "does not speak the fleet's TLS" in caplog.text
    assert await (await port.connect(address, tls=fleet.gateway)).infer(b"1") == b"1"
    assert len(port.server.connections) == 1


async def test_a_replica_in_the_clear_is_found_out(
    port: "Port", fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    address = await port.serve()
    with pytest.raises(ConnectionLostError, match="no TLS with it.*SMELT_REPLICA_FLEET_CERT"):
        await port.connect(address, tls=fleet.gateway)
    assert "the peer speaks TLS, and this end does not" in caplog.text


async def test_only_whom_the_authority_signed_is_let_in(
    port: "Port", fleet: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both ways; the certificate of an end is of the other's authority, or is not."""
    other = Fleet(tmp_path, "other")
    address = await port.serve(tls=fleet.replica)
    with pytest.raises(ConnectionLostError, match="no TLS with it.*CERTIFICATE_VERIFY_FAILED"):
        await port.connect(address, tls=other.gateway)
    forged = other.authority.sign("forged")
    believes = FleetTls(forged.cert, forged.key, fleet.authority.cert)
    caplog.clear()
    with pytest.raises(ConnectionLostError, match="no connection to replica"):
        await port.connect(address, tls=believes)
    assert "certificate that the fleet's authority signed" in caplog.text


async def test_a_peer_that_says_nothing_is_let_go(port: "Port", fleet: Fleet) -> None:
    peer = await port.dial_raw(await port.serve(tls=fleet.replica, greeting_timeout_s=0.05))
    async with asyncio.timeout(30):
        assert await peer.reader.read() == b""
    assert port.server.connections == set()


async def test_a_connection_for_which_no_descriptor_is_left_is_let_go(
    port: "Port", fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(_: socket.socket) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    address = await port.serve(tls=fleet.replica)
    with monkeypatch.context() as full:
        full.setattr(socket.socket, "dup", none_left)
        peer = await port.dial_raw(address)
        async with asyncio.timeout(30):
            assert await peer.reader.read() == b""
    assert "lost before it began: [Errno 24]" in caplog.text
    assert await (await port.connect(address, tls=fleet.gateway)).infer(b"next") == b"next"


async def test_a_port_that_closes_lets_go_of_handshakes(port: "Port", fleet: Fleet) -> None:
    peer = await port.dial_raw(await port.serve(tls=fleet.replica))
    connection = await port.connect(port.server.addresses[0], tls=fleet.gateway)
    async with asyncio.timeout(30):
        await port.server.close()
        assert await peer.reader.read() == b""
        await connection.wait_lost()


async def test_a_rotated_certificate_is_shown_and_old_connections_live_on(
    port: "Port", fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = fleet.files
    address = await port.serve(tls=fleet.replica)
    connection = await port.connect(address, tls=fleet.gateway)
    first = serial_of(files)
    # Half of a rotation: the certificate, and not yet its key.
    key = files.key.read_bytes()
    fleet.authority.sign("replica", files)
    new_key = files.key.read_bytes()
    files.key.write_bytes(key)
    assert await shown_serial(address, fleet.gateway) == first
    assert "certificate stays the previous one" in caplog.text
    files.key.write_bytes(new_key)
    assert await shown_serial(address, fleet.gateway) == serial_of(files) != first
    assert await connection.infer(b"old") == b"old"


async def test_another_authority_takes_over_at_both_ends(port: "Port", fleet: Fleet) -> None:
    address = await port.serve(tls=fleet.replica)
    await port.connect(address, tls=fleet.gateway)
    old = fleet.authority.cert.read_bytes()
    new = Authority(fleet.authority.cert.parent, "new")
    fleet.authority.cert.write_bytes(old + new.cert.read_bytes())
    new.sign("replica", fleet.files)
    assert await (await port.connect(address, tls=fleet.gateway)).infer(b"new") == b"new"


async def test_tls_below_1_3_is_refused(
    port: "Port", fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    host, number = (await port.serve(tls=fleet.replica)).split(":")
    context = fleet.gateway.client_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError):  # noqa: PT011 - each event loop has its own
        await asyncio.open_connection(host, int(number), ssl=context, server_hostname="")
    assert "UNSUPPORTED_PROTOCOL" in caplog.text


@pytest.mark.parametrize(("host", "is_told"), [("0.0.0.0", True), ("127.0.0.1", False)])
async def test_a_port_in_the_clear_for_other_hosts_is_warned_of(
    port: "Port", caplog: pytest.LogCaptureFixture, host: str, is_told: bool
) -> None:
    await port.serve()
    caplog.clear()
    await port.server.listen(f"{host}:0")
    assert ("in the clear" in caplog.text) is is_told
