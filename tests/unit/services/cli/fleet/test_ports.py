"""Ports are looked at before anything starts."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.fleet.fleet_file import fleet_lock
from services.cli.fleet.local_fleet import LocalFleet
from services.cli.fleet.ports import require_free
from services.cli.fleet.up_options import UpOptions
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which this test listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_in_use_is_named_with_the_option(taken: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"port {taken} .*is in use; .*--grpc-port, 0"):
        require_free(taken, "--grpc-port")


def test_any_port_is_free() -> None:
    require_free(0, "--grpc-port")


def test_a_server_that_has_gone_leaves_its_port() -> None:
    """Its last connection lingers for minutes and hinders no server."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first is the one that lingers
    require_free(port, "--grpc-port")


@pytest.mark.parametrize("option", ["grpc_port", "metrics_port"])
def test_up_refuses_at_once_and_leaves_the_place_free(
    taken: int, tmp_path: Path, option: str
) -> None:
    settings = CliSettings(home=tmp_path)
    ports = {"grpc_port": 0, "metrics_port": 0, option: taken}
    wanted = "--" + option.replace("_", "-")
    with (
        pytest.raises(InvalidRequestError, match=f"port {taken} .*{wanted}"),
        LocalFleet(settings, UpOptions(**ports)),
    ):
        pass
    assert not list(settings.run_dir.glob("*.log"))  # no process was started
    with fleet_lock(settings.run_dir):
        pass
