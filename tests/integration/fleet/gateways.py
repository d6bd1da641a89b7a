"""More gateways before a fleet that is up, each with settings of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.cli.fleet.child_process import ChildProcess, ProcessSpec
from services.cli.fleet.control_client import wait_served
from services.cli.settings import CliSettings
from tests.integration.fleet.local_fleet import WAIT_S, LocalFleet


@contextmanager
def gateway_of(
    fleet: LocalFleet, folder: Path, *, authority: Path | None = None, **settings: Any
) -> Iterator[str]:
    """A gateway process that can ask `linear`; gives its address.

    `authority` is the certificate to trust where the settings switch TLS on.
    """
    own: dict[str, Any] = {
        "controller": fleet.running["controller"],
        "grpc_port": 0,
        "metrics_port": 0,
    }
    own |= fleet.settings.fleet_security
    spec = ProcessSpec(
        module="services.gateway", env_prefix="SMELT_GATEWAY_", settings=own | settings
    )
    process = ChildProcess(spec, folder / "gateway.log", WAIT_S)
    try:
        address = f"127.0.0.1:{process.start()['grpc_port']}"
        wait_served(CliSettings(home=folder, tls_ca_file=authority), address, "linear", WAIT_S)
        yield address
    finally:
        process.stop()
