"""The context of the gateway's TLS under an event loop's server, on real sockets."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from services.gateway.access.tls import RotatingTls, TlsFiles
from tests.certificates import Authority, CertificateFiles

LIMIT_S = 30
END = b""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo(asyncio.Protocol):
    """Sends back what it gets; counts the connections that came so far."""

    def __init__(self, port: "Port") -> None:
        self._port = port

    def connection_made(self, transport: Any) -> None:
        """The handshake is done."""
        self._port.num_connections += 1
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Send it back."""
        self._transport.write(data)


class Port:
    """A server of `Echo` on a port of its own, and its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, Authority(folder)
        self.files = self.authority.sign("gateway")
        self.num_connections = 0
        self.errors: list[dict[str, Any]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, client_ca: Path | None = None) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, details: self.errors.append(details))
        files = TlsFiles(cert=self.files.cert, key=self.files.key, client_ca=client_ca)
        listening = socket.create_server(("127.0.0.1", 0))
        self.address = listening.getsockname()
        self._server = await loop.create_server(
            lambda: Echo(self), sock=listening, ssl=RotatingTls(files, period_s=0).context
        )

    async def close(self) -> None:
        """Hang up, and stop to listen."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        async with asyncio.timeout(LIMIT_S):
            await self._server.wait_closed()

    async def dial(
        self, files: CertificateFiles | None = None, alpn: tuple[str, ...] = ("h2",)
    ) -> Streams:
        """Connect with TLS."""
        context = ssl.create_default_context(cafile=self.authority.cert)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if alpn:
            context.set_alpn_protocols(list(alpn))
        if files:
            context.load_cert_chain(files.cert, files.key)
        return await self._connected(ssl=context)

    async def dial_plain(self) -> Streams:
        """Connect without."""
        return await self._connected()

    async def _connected(self, **how: Any) -> Streams:
        streams = await asyncio.open_connection(*self.address, **how)
        self._writers.append(streams[1])
        return streams


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    """A port whose files are looked at for each connection."""
    port = Port(tmp_path)
    yield port
    await port.close()
    assert not port.errors, "the loop was told of an error that no protocol has seen"


async def said(streams: Streams, data: bytes = b"hello") -> bytes:
    """What comes back for some bytes; none when the server hung up."""
    reader, writer = streams
    writer.write(data)
    async with asyncio.timeout(LIMIT_S):
        try:
            return await reader.read(100)
        except OSError:  # a reset, or an alert
            return END


def serial(streams: Streams) -> int:
    """Of the certificate that the server showed."""
    shown = streams[1].get_extra_info("ssl_object").getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(shown).serial_number


async def test_new_connections_get_the_newest_certificate_and_open_ones_stay(port: Port) -> None:
    await port.open()
    former = await port.dial()
    assert await said(former) == b"hello"
    port.authority.sign("gateway", port.files)
    newer = await port.dial()
    written = x509.load_pem_x509_certificate(port.files.cert.read_bytes())
    assert serial(newer) == written.serial_number != serial(former)
    assert await said(newer) == await said(former) == b"hello"


async def test_an_authority_that_is_taken_away_admits_no_new_clients(port: Port) -> None:
    old, new = (Authority(port.folder, name) for name in ("old", "new"))
    client_ca = port.folder / "client-ca.crt"
    client_ca.write_bytes(old.cert.read_bytes() + new.cert.read_bytes())
    await port.open(client_ca)
    ada, bob = old.sign("ada"), new.sign("bob")
    former = await port.dial(ada)
    assert await said(former) == await said(await port.dial(bob)) == b"hello"
    client_ca.write_bytes(new.cert.read_bytes())
    for files in (ada, None):
        # The client may think that it is connected until it hears back.
        assert await said(await port.dial(files)) == END
    assert await said(former) == await said(await port.dial(bob)) == b"hello"
    assert port.num_connections == 3


@pytest.mark.parametrize("data", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
async def test_plain_text_is_hung_up_on(
    port: Port, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await port.open()
    answer = await said(await port.dial_plain(), data)
    assert answer == END
    assert await said(await port.dial()) == b"hello"
    assert port.num_connections == 1
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.parametrize("alpn", [(), ("http/1.1",)])
async def test_a_client_without_http2_is_hung_up_on(port: Port, alpn: tuple[str, ...]) -> None:
    await port.open()
    assert await said(await port.dial(alpn=alpn)) == END
    assert await said(await port.dial(alpn=(*alpn, "h2"))) == b"hello"
    assert port.num_connections == 1
