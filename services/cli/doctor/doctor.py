"""`smelt doctor`: what this host has and lacks for a fleet, and the commands that install it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from importlib import metadata
from typing import Final

from services.cli.doctor.device_checks import check_devices, check_instructions, check_kinds
from services.cli.doctor.finding import Finding, Level
from services.cli.doctor.host_checks import check_disk, check_packages, check_ports
from services.cli.doctor.install_commands import install_command
from services.cli.doctor.store_checks import check_store
from services.cli.fleet.fleet_file import RunningFleet, find_fleet
from services.cli.fleet.ports import is_free
from services.cli.output.show import OUTPUT_FORM, print_json, print_line
from services.cli.settings import ANOTHER_HOME, CliSettings
from services.contracts.errors import NotReadyError, SmeltError

_DASHBOARD: Final = "127.0.0.1:8265"

Check = Callable[[], Iterable[Finding]]


def run_doctor(settings: CliSettings) -> int:
    """Look at everything, and print each finding as it is made.

    Returns:
        The exit code: 1 when there is a problem.
    """
    found = []
    as_json = OUTPUT_FORM.get().as_json
    for finding in findings(checks(settings)):
        found.append(finding)
        if not as_json:
            print_line("\n".join(finding.lines()))
    levels = Counter(finding.level for finding in found)
    num_problems = levels[Level.PROBLEM]
    if as_json:
        print_json({"findings": [asdict(each) for each in found], "num_problems": num_problems})
    else:
        print_line(f"problems: {num_problems}, warnings: {levels[Level.WARNING]}")
    return 1 if num_problems else 0


def checks(settings: CliSettings) -> dict[str, Check]:
    """Every check by its name, in the order in which they are shown."""
    return {
        "packages": check_packages,
        "devices": check_devices,
        "instructions": check_instructions,
        "kinds": check_kinds,
        "Ray": check_ray,
        "fleet": lambda: check_fleet(settings),
        "ports": lambda: check_ports(settings),
        "disk": lambda: check_disk(settings),
        # Last: one that does not answer is tried for a while.
        "store": lambda: check_store(settings),
    }


def findings(wanted: dict[str, Check]) -> Iterator[Finding]:
    """What checks find; one that cannot be made is a problem, and the others are made."""
    for name, check in wanted.items():
        try:
            yield from check()
        except ImportError as error:
            missing = (error.name or "").partition(".")[0]
            fix = install_command(missing) if missing else ""
            yield Finding(check=name, level=Level.PROBLEM, found=str(error), fix=fix)
        except (SmeltError, OSError) as error:
            fix = ANOTHER_HOME if isinstance(error, PermissionError | NotADirectoryError) else ""
            yield Finding(check=name, level=Level.PROBLEM, found=str(error), fix=fix)


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
