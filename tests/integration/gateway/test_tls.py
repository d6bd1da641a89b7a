"""TLS and mTLS on the public port, and certificates that change while it serves."""

import asyncio
import ssl
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from services.gateway import server
from services.gateway.access.tls import RotatingTls
from tests.certificates import Authority, CertificateFiles
from tests.integration.gateway.answers import Inputs

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


async def serve(fleet: "Fleet", files: CertificateFiles, **settings: Any) -> None:
    """Start a gateway with that certificate."""
    await fleet.start_gateway(tls_cert_file=files.cert, tls_key_file=files.key, **settings)
    await fleet.until_ready("r1", "r2")


def client_of(fleet: "Fleet", authority: Authority, **more: str) -> InferenceServerClient:
    """An unmodified Triton client that trusts an authority."""
    return InferenceServerClient(fleet.url, ssl=True, root_certificates=str(authority.cert), **more)


async def shown_serial(fleet: "Fleet") -> int:
    """Of the certificate that a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, port = fleet.url.split(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(der).serial_number


def serial_of(files: CertificateFiles) -> int:
    """Of the certificate in a file."""
    return x509.load_pem_x509_certificate(files.cert.read_bytes()).serial_number


async def test_a_client_that_trusts_the_authority_is_served(
    echo_fleet: "Fleet", tmp_path: Path, inputs: Inputs
) -> None:
    authority = Authority(tmp_path)
    await serve(echo_fleet, authority.sign("gateway"))
    async with client_of(echo_fleet, authority) as client:
        assert (await client.infer("echo", inputs())).as_numpy("y").shape == (1, 4)
    async with client_of(echo_fleet, Authority(tmp_path, "other")) as client:
        with pytest.raises(InferenceServerException, match="(?i)certificate|handshak|connect"):
            await client.infer("echo", inputs())
    async with InferenceServerClient(echo_fleet.url) as plain:
        with pytest.raises(InferenceServerException, match="UNAVAILABLE"):
            await plain.infer("echo", inputs())


async def test_with_an_authority_for_clients_only_those_it_signed_are_served(
    echo_fleet: "Fleet", tmp_path: Path, inputs: Inputs
) -> None:
    authority, clients = Authority(tmp_path), Authority(tmp_path, "clients")
    await serve(echo_fleet, authority.sign("gateway"), tls_client_ca_file=clients.cert)
    mine = clients.sign("ada")
    known = {"private_key": str(mine.key), "certificate_chain": str(mine.cert)}
    async with client_of(echo_fleet, authority, **known) as client:
        assert await client.infer("echo", inputs())
    forged = authority.sign("eve")
    unknown = {"private_key": str(forged.key), "certificate_chain": str(forged.cert)}
    for more in (unknown, {}):
        async with client_of(echo_fleet, authority, **more) as client:
            with pytest.raises(InferenceServerException):
                await client.infer("echo", inputs())


async def test_a_rotated_certificate_is_shown_to_new_connections_and_old_ones_live_on(
    echo_fleet: "Fleet", tmp_path: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The files are looked at for each connection.
    monkeypatch.setattr(server, "RotatingTls", partial(RotatingTls, period_s=0))
    authority = Authority(tmp_path)
    files = authority.sign("gateway")
    await serve(echo_fleet, files)
    first = serial_of(files)
    async with client_of(echo_fleet, authority) as client:
        await client.infer("echo", inputs())
        # Half of a rotation: the certificate, and not yet its key.
        key = files.key.read_bytes()
        authority.sign("gateway", files)
        new_key = files.key.read_bytes()
        files.key.write_bytes(key)
        assert await shown_serial(echo_fleet) == first
        files.key.write_bytes(new_key)
        assert await shown_serial(echo_fleet) == serial_of(files) != first
        assert await client.infer("echo", inputs())


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("cert", "TLS certificate .*gateway.crt: no PEM certificates"),
        ("key", "TLS key .*gateway.key: not a PEM private key"),
        ("pair", "is not the key of the certificate in"),
        ("ca", "TLS certificate .*ca.crt: no PEM certificates"),
        ("absent", "TLS file .*gateway.key cannot be read"),
    ],
)
async def test_files_that_cannot_be_used_end_the_start(
    fleet_of: "Fleet", tmp_path: Path, broken: str, words: str
) -> None:
    from services.contracts.errors import InvalidRequestError

    authority = Authority(tmp_path)
    files = authority.sign("gateway")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.cert.read_bytes())
    if broken == "pair":
        files.key.write_bytes(authority.sign("else").key.read_bytes())
    elif broken == "absent":
        files.key.unlink()
    else:
        {"cert": files.cert, "key": files.key, "ca": ca}[broken].write_text("no PEM")
    with pytest.raises(InvalidRequestError, match=words):
        await fleet_of.start_gateway(
            tls_cert_file=files.cert, tls_key_file=files.key, tls_client_ca_file=ca
        )
