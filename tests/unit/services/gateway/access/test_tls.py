"""Which certificates a connection gets and must show, as files are rotated; no sockets."""

import errno
import logging
import os
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from services.contracts.errors import InvalidRequestError
from services.gateway.access.tls import RotatingTls, TlsFiles
from tests.certificates import Authority, CertificateFiles

V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
both_versions = pytest.mark.parametrize("version", [V12, V13])


class Port:
    """A server's files, and clients that connect to it through memory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, Authority(folder)
        self.files = self.authority.sign("gateway")
        self.client_ca = folder / "client-ca.crt"

    def open(self, *clients: Authority) -> ssl.SSLContext:
        """Begin to serve; with authorities for clients, only those they signed."""
        self.trust(*clients)
        ca = self.client_ca if clients else None
        files = TlsFiles(cert=self.files.cert, key=self.files.key, client_ca=ca)
        # They are looked at for each connection.
        self.context = RotatingTls(files, period_s=0).context
        return self.context

    def trust(self, *clients: Authority) -> None:
        """Write the file of clients' authorities."""
        self.client_ca.write_bytes(b"".join(each.cert.read_bytes() for each in clients))

    def client(
        self,
        version: ssl.TLSVersion = V13,
        files: CertificateFiles | None = None,
        alpn: tuple[str, ...] = ("h2",),
    ) -> ssl.SSLContext:
        """A client that trusts the port's authority."""
        context = ssl.create_default_context(cafile=self.authority.cert)
        context.minimum_version = context.maximum_version = version
        # Certificates of these tests do not say what newer Pythons ask of them by default.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if alpn:
            context.set_alpn_protocols(list(alpn))
        if files:
            context.load_cert_chain(files.cert, files.key)
        return context

    def connect(
        self, client: ssl.SSLContext | None = None, session: ssl.SSLSession | None = None
    ) -> "Connection":
        """Both ends of a connection, after a message each way; raises SSLError."""
        return Connection(self.context, client or self.client(), session)


class Connection:
    """Two ends whose bytes go through memory."""

    def __init__(
        self, server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None
    ) -> None:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(to_server, to_client, server_side=True)
        self.client = client.wrap_bio(
            to_client, to_server, server_hostname="127.0.0.1", session=session
        )
        for end in (self.client, self.server) * 3:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
        self.talk()

    def talk(self) -> None:
        """A message each way; the client gets its session with the first."""
        for one, other in ((self.server, self.client), (self.client, self.server)):
            one.write(b"hello")
            assert other.read() == b"hello"

    @property
    def shown(self) -> str:
        """The certificate that the server showed."""
        return ssl.DER_cert_to_PEM_cert(self.client.getpeercert(binary_form=True) or b"")


@pytest.fixture
def port(tmp_path: Path) -> Port:
    return Port(tmp_path)


@both_versions
def test_a_new_connection_gets_the_newest_certificate_and_an_open_one_stays(
    port: Port, version: ssl.TLSVersion
) -> None:
    port.open()
    client = port.client(version)
    opened = port.connect(client)
    assert opened.shown == port.files.cert.read_text()
    session = opened.client.session
    assert port.connect(client, session).client.session_reused
    port.authority.sign("gateway", port.files)
    # With the session too: the certificate it was made with is not the server's any more.
    for each in (None, session):
        assert port.connect(client, each).shown == port.files.cert.read_text() != opened.shown
    opened.talk()


@pytest.mark.parametrize("first", ["cert", "key"])
def test_half_of_a_rotation_keeps_the_former_certificate_and_is_logged_once(
    port: Port, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    port.open()
    former = port.files.cert.read_text()
    newer = port.authority.sign("newer")
    halves = [(newer.cert, port.files.cert), (newer.key, port.files.key)]
    for source, target in halves if first == "cert" else reversed(halves):
        assert port.connect().shown == port.connect().shown == former
        target.write_bytes(source.read_bytes())
    assert port.connect().shown == newer.cert.read_text()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "is not the key of the certificate in" in caplog.text


def test_a_file_that_comes_back_as_it_was_ends_the_wait(port: Port) -> None:
    port.open()
    former = port.context.newest()
    # Renewed with the key it had, while that cannot be read.
    port.files.cert.write_text(port.files.cert.read_text() + port.authority.cert.read_text())
    away = port.files.key.rename(port.folder / "away")
    assert port.context.newest() is former
    away.rename(port.files.key)
    assert port.context.newest() is not former
    port.connect()


def test_a_change_that_cannot_be_loaded_now_is_tried_again(
    port: Port, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(name: str) -> int:
        raise OSError(errno.EMFILE, f"too many open files, {name}")

    port.open()
    former = port.connect().shown
    port.authority.sign("gateway", port.files)
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", full)
        assert port.connect().shown == former
        assert "cannot be used: [Errno 24] too many open files" in caplog.text
        with pytest.raises(InvalidRequestError, match="cannot be used"):
            port.open()
    assert port.connect().shown == port.files.cert.read_text()


@both_versions
def test_only_clients_of_the_newest_authorities_are_let_in(
    port: Port, version: ssl.TLSVersion
) -> None:
    old, new = (Authority(port.folder, name) for name in ("old", "new"))
    port.open(old, new)
    ada, bob = (port.client(version, each.sign("client")) for each in (old, new))
    strangers = [port.client(version), port.client(version, port.authority.sign("eve"))]
    opened = port.connect(ada)
    session = port.connect(ada).client.session
    for each in strangers:
        with pytest.raises(ssl.SSLError):
            port.connect(each)
    port.trust(new)
    # Whoever was let in before does not get in on that: neither anew nor with its session.
    for former in (None, session):
        with pytest.raises(ssl.SSLError, match="certificate|CERTIFICATE"):
            port.connect(ada, former)
    port.connect(bob)
    opened.talk()
    port.trust(old, new)
    port.connect(ada)


@both_versions
def test_a_client_shows_its_certificate_at_each_connection(
    port: Port, version: ssl.TLSVersion
) -> None:
    clients = Authority(port.folder, "clients")
    port.open(clients)
    client = port.client(version, clients.sign("ada"))
    session = port.connect(client).client.session
    assert not port.connect(client, session).client.session_reused


def test_an_authority_that_another_one_signed_is_believed_without_its_root(port: Port) -> None:
    team = Authority(port.folder, "team")
    Authority(port.folder, "root").vouch_for(team)
    port.open(team)
    port.connect(port.client(files=team.sign("ada")))


@both_versions
@pytest.mark.parametrize("alpn", [(), ("http/1.1",), ("http/1.1", "h2")])
def test_a_client_that_does_not_offer_http2_is_given_up(
    port: Port, version: ssl.TLSVersion, alpn: tuple[str, ...]
) -> None:
    port.open()
    client = port.client(version, alpn=alpn)
    if "h2" in alpn:
        assert port.connect(client).client.selected_alpn_protocol() == "h2"
    else:
        with pytest.raises(ssl.SSLError, match="the client does not offer HTTP/2"):
            port.connect(client)


def test_ciphers_that_http2_forbids_are_not_agreed_on(port: Port) -> None:
    port.open()
    client = port.client(V12)
    client.set_ciphers("ECDHE-ECDSA-AES128-SHA256:ECDHE-ECDSA-AES256-SHA384")
    with pytest.raises(ssl.SSLError):
        port.connect(client)


def test_a_file_without_authorities_does_not_let_everybody_in(port: Port) -> None:
    port.open(Authority(port.folder, "clients"))
    port.client_ca.write_bytes(b"")
    with pytest.raises(ssl.SSLError):
        port.connect()
    tls = TlsFiles(cert=port.files.cert, key=port.files.key, client_ca=port.client_ca)
    with pytest.raises(InvalidRequestError, match="client-ca.crt: no PEM certificates"):
        RotatingTls(tls)


def test_reading_leaves_no_descriptor_open(port: Port) -> None:
    port.open()
    for _ in range(3):
        port.authority.sign("gateway", port.files)
        port.connect()
    opened = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed since, as that of this list is
            opened.add(str(descriptor.readlink()))
    # Others' come and go, as garbage is collected.
    assert not [each for each in opened if each.startswith(("/memfd:tls", str(port.folder)))]
