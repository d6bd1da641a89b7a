"""What `smelt up` gives its processes."""

from pathlib import Path

import pytest

from services.cli.fleet.process_specs import controller_spec
from services.cli.fleet.up_options import UpOptions
from services.cli.settings import CliSettings


@pytest.mark.parametrize(
    ("host", "replica_host"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("10.0.0.1", "0.0.0.0")],
)
def test_replicas_of_a_fleet_beyond_loopback_listen_where_other_hosts_connect(
    tmp_path: Path, host: str, replica_host: str
) -> None:
    """Each of their hosts has an address of its own."""
    spec = controller_spec(
        CliSettings(home=tmp_path), UpOptions(host=host), ray_address="auto", listen=f"{host}:0"
    )
    assert spec.settings["replica_host"] == replica_host
