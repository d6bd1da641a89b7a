"""Packages, ports and disks of this host."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from services.cli.doctor.finding import Finding, Level
from services.cli.doctor.install_commands import pip_command, wrong_versions
from services.cli.fleet.fleet_file import RunningFleet, find_fleet
from services.cli.fleet.ports import is_free
from services.cli.fleet.up_options import UpOptions
from services.cli.settings import ANOTHER_HOME, CliSettings
from services.contracts.store.store_url import store_folder
from services.contracts.text.words import readable_size

_GB: Final = 1_000_000_000
# A few models with three engines each, their copies in the cache, and the work of one build.
_HOME_BYTES = 2 * _GB
_STORE_BYTES = 2 * _GB
_WORK_BYTES = _GB
# Below it even a log fills the disk.
_LEAST_BYTES: Final = 200_000_000
_LOOPBACK: Final = "127.0.0.1"


def check_packages() -> Iterator[Finding]:
    """Python, and the versions of what is installed beside Smelt."""
    try:
        version = metadata.version("smelt")
    except metadata.PackageNotFoundError:
        version = "(a folder of sources, not installed)"
    python = ".".join(map(str, sys.version_info[:3]))
    found = f"smelt {version}, Python {python}"
    if not (wrong := wrong_versions()):
        yield Finding(check="packages", found=found)
        return
    yield Finding(
        check="packages",
        level=Level.WARNING,
        found=f"{found}; {'; '.join(wrong.values())}",
        wanted="the versions that Smelt names",
        fix=pip_command(shlex.join(wrong)),
    )


def check_ports(settings: CliSettings) -> Iterator[Finding]:
    """The ports that `smelt up` takes by default."""
    options = UpOptions()
    fleet = find_fleet(settings.run_dir)
    yield port_finding(options.grpc_port, "--grpc-port", Level.PROBLEM, fleet)
    yield port_finding(options.metrics_port, "--metrics-port", Level.PROBLEM, fleet)
    # Needed with --observe alone.
    yield port_finding(options.observe_port, "--observe-port", Level.WARNING, fleet)


def port_finding(port: int, option: str, level: Level, fleet: RunningFleet | None) -> Finding:
    """Whether a port is free, or who holds it.

    Args:
        port: of this host.
        option: of `smelt up`, that chooses another.
        level: of one that something else holds.
        fleet: of this host, which may hold it itself.
    """
    check = f"port {port}"
    address = f"{_LOOPBACK}:{port}"
    if fleet and _is_of(fleet, port):
        return Finding(check=check, found=f"this host's fleet ({option})")
    if is_free(address, _LOOPBACK):
        return Finding(check=check, found=f"free ({option})")
    return Finding(
        check=check,
        level=level,
        found=f"held by {_holder(port)}",
        wanted="free",
        fix=f"smelt up {option} 0, which takes any free one; or end that process",
    )


def check_disk(settings: CliSettings) -> Iterator[Finding]:
    """Free space where Smelt writes, once for each file system."""
    needs = [(settings.home, _HOME_BYTES), (Path(tempfile.gettempdir()), _WORK_BYTES)]
    if folder := store_folder(settings.store_url):
        needs.append((folder, _STORE_BYTES))
    by_disk: dict[int, list[tuple[Path, int]]] = {}
    for folder, num_bytes in needs:
        by_disk.setdefault(nearest_folder(folder).stat().st_dev, []).append((folder, num_bytes))
    for on_disk in by_disk.values():
        folders = [folder for folder, _ in on_disk]
        yield disk_finding(folders, sum(num_bytes for _, num_bytes in on_disk))


def disk_finding(folders: list[Path], needed_bytes: int) -> Finding:
    """Whether one file system has the space that these folders need, and can be written."""
    free_bytes = shutil.disk_usage(nearest_folder(folders[0])).free
    locked = [str(each) for each in folders if not os.access(nearest_folder(each), os.W_OK)]
    found = f"{readable_size(free_bytes)} free for {', '.join(map(str, folders))}"
    wanted = f"{readable_size(needed_bytes)} for a few models"
    if locked:
        return Finding(
            check="disk",
            level=Level.PROBLEM,
            found=f"{', '.join(locked)} cannot be written",
            wanted="folders of this user",
            fix=f"{ANOTHER_HOME}, --store FOLDER another store",
        )
    if free_bytes >= needed_bytes:
        return Finding(check="disk", found=f"{found}; {wanted} wanted")
    level = Level.PROBLEM if free_bytes < _LEAST_BYTES else Level.WARNING
    fix = "smelt prune --yes removes what is old; SMELT_HOME=FOLDER names another disk"
    return Finding(check="disk", level=level, found=found, wanted=wanted, fix=fix)


def nearest_folder(path: Path) -> Path:
    """The path itself, or the nearest folder above it that is there."""
    return next(each for each in (path, *path.parents) if each.is_dir())


def _is_of(fleet: RunningFleet, port: int) -> bool:
    mine = (fleet.grpc_address, fleet.metrics_address, fleet.prometheus_url)
    return any(address.endswith(f":{port}") for address in mine)


def _holder(port: int) -> str:
    """Which process listens on a port, where this user may see it."""
    import psutil

    try:
        listening = psutil.CONN_LISTEN
        for each in psutil.net_connections(kind="tcp"):
            if each.laddr and each.laddr.port == port and each.pid and each.status == listening:
                return f"{psutil.Process(each.pid).name()} (process {each.pid})"
    except psutil.Error:
        pass
    return "a process that this user may not see"
