"""The running fleet's file: where a local fleet listens, for every other command."""

import os
from pathlib import Path

from pydantic import ValidationError

from services.contracts.document import Document
from services.contracts.errors import NotFoundError


class RunningFleet(Document):
    """A fleet started by `smelt up` on this host.

    Attributes:
        supervisor_pid: process that owns controller and gateway.
        controller: `host:port` of FleetControl.
        grpc_address: `host:port` for KServe v2 clients.
        metrics_address: `host:port` of the gateway's /metrics.
    """

    supervisor_pid: int
    controller: str
    grpc_address: str
    metrics_address: str
    store_url: str


def write_fleet(run_dir: Path, running: RunningFleet) -> None:
    """Publish the file; renamed into place, so never read half."""
    partial = run_dir / "fleet.json.partial"
    partial.write_bytes(running.canonical_json())
    partial.replace(run_dir / "fleet.json")


def remove_fleet(run_dir: Path) -> None:
    """Withdraw the file."""
    (run_dir / "fleet.json").unlink(missing_ok=True)


def find_fleet(run_dir: Path) -> RunningFleet | None:
    """The running fleet, or None; a file left by a dead supervisor counts as none."""
    try:
        running = RunningFleet.from_json((run_dir / "fleet.json").read_bytes())
        os.kill(running.supervisor_pid, 0)
    except (FileNotFoundError, ProcessLookupError, ValidationError):
        return None
    return running


def require_fleet(run_dir: Path) -> RunningFleet:
    """The running fleet; raises NotFoundError with the command that starts one."""
    running = find_fleet(run_dir)
    if running is None:
        raise NotFoundError(f"no fleet runs here ({run_dir}); start one: smelt up")
    return running
