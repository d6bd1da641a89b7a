"""Ray, and the fleet that runs here."""

from collections.abc import Iterator
from importlib import metadata
from typing import Final

from services.cli.doctor.finding import Finding, Level
from services.cli.doctor.install_commands import install_command
from services.cli.fleet.fleet_file import RunningFleet, find_fleet
from services.cli.fleet.ports import is_free
from services.cli.settings import CliSettings
from services.contracts.errors import NotReadyError

_DASHBOARD: Final = "127.0.0.1:8265"


def check_ray() -> Iterator[Finding]:
    """Which Ray is installed, what of it runs on this host, and its dashboard."""
    import psutil

    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        yield Finding(
            check="Ray",
            level=Level.PROBLEM,
            found="not installed",
            wanted="it places replicas and builds",
            fix=install_command("ray"),
        )
        return
    num = sum(each.info["name"] == "raylet" for each in psutil.process_iter(["name"]))
    is_shown = not is_free(_DASHBOARD, "127.0.0.1")
    dashboard = f"http://{_DASHBOARD}" if is_shown else "none (smelt up starts none)"
    yield Finding(
        check="Ray", found=f"{version}; nodes that run here: {num}; dashboard: {dashboard}"
    )


def check_fleet(settings: CliSettings) -> Iterator[Finding]:
    """Whether a fleet runs here and is whole."""
    running = find_fleet(settings.run_dir)
    if running is None:
        yield Finding(check="fleet", found="none runs here; smelt up starts one")
        return
    where = f"process {running.supervisor_pid}, gRPC {running.grpc_address}"
    for name, fault in running.troubles.items():
        yield Finding(
            check="fleet",
            level=Level.PROBLEM,
            found=f"{where}: {name} does not run: {fault}",
            wanted="it is being started again",
            fix=f"smelt logs {name}",
        )
    yield _controller(settings, running, where)


def _controller(settings: CliSettings, running: RunningFleet, where: str) -> Finding:
    from services.cli.fleet.control_client import get_fleet

    try:
        fault = get_fleet(running.controller, settings).fault
    except NotReadyError as error:
        fault = str(error)
    if fault:
        fix = "smelt logs controller"
        return Finding(check="fleet", level=Level.PROBLEM, found=f"{where}: {fault}", fix=fix)
    return Finding(check="fleet", found=f"runs ({where})")
