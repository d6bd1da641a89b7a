"""How the commands reach a gateway that wants TLS or tokens."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import pytest

from services.cli.requests.gateway_client import (
    bearer_metadata,
    gateway_channel,
    gateway_error,
    require_way_in,
    triton_options,
)
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotReadyError
from services.contracts.process.settings import read_settings


def test_by_default_in_the_clear_and_without_a_token(tmp_path: Path) -> None:
    settings = CliSettings(home=tmp_path)
    assert bearer_metadata(settings) == {}
    assert triton_options(settings) == {}
    require_way_in(settings)


def test_a_missing_authority_is_named(tmp_path: Path) -> None:
    settings = CliSettings(home=tmp_path, tls_ca_file=tmp_path / "ca.crt")
    with pytest.raises(InvalidRequestError, match=r"TLS file .*ca.crt cannot be read"):
        gateway_channel(settings, "127.0.0.1:1")


def test_half_a_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="tls_cert_file and tls_key_file together"):
        read_settings(CliSettings, home=tmp_path, tls_key_file=tmp_path / "key")


def test_a_fleet_that_its_own_commands_could_not_ask_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CERT", "KEY"):
        monkeypatch.setenv(f"SMELT_GATEWAY_TLS_{name}_FILE", str(tmp_path / name))
    with pytest.raises(NotReadyError, match="set SMELT_TLS_CA_FILE"):
        require_way_in(CliSettings(home=tmp_path))
    require_way_in(CliSettings(home=tmp_path, tls_ca_file=tmp_path / "ca"))


@pytest.mark.parametrize(
    ("details", "hint"),
    [
        ("Trying to connect an http1.x server", "an HTTP/1.1 port, not the gRPC port"),
        ("Failed parsing HTTP/2", "an HTTP/1.1 port, not the gRPC port"),
        ("connect: Connection refused (111)", "nothing listens there"),
        ("Socket closed", None),
    ],
)
def test_a_wrong_address_points_to_the_right_one(details: str, hint: str | None) -> None:
    error = SimpleNamespace(code=lambda: grpc.StatusCode.UNAVAILABLE, details=lambda: details)
    message = str(gateway_error("127.0.0.1:8000", cast("grpc.RpcError", error)))
    assert message.startswith(f"gateway 127.0.0.1:8000: UNAVAILABLE: {details}")
    assert ("smelt status" in message) == (hint is not None)
    assert (hint or details) in message
