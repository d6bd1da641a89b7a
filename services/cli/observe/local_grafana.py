"""A Grafana beside the fleet, where one is installed: data source and boards provisioned."""

import json
import shutil
import socket
from pathlib import Path
from typing import Final

from services.cli.fleet.child_process import ChildProcess, ProgramSpec
from services.telemetry.metrics_page import is_answered

# The boards stand in a checkout; an installed package does not bring them.
BOARDS: Final = Path(__file__).resolve().parents[3] / "deploy" / "grafana"
_PORT = 3000
_START_TIMEOUT_S = 60.0
_HOMES = (Path("/usr/share/grafana"), Path("/usr/local/share/grafana"))


def find_grafana() -> list[str]:
    """The command that starts a server; empty when none is installed."""
    if path := shutil.which("grafana"):
        return [path, "server"]
    if path := shutil.which("grafana-server"):
        return [path]
    return []


class LocalGrafana:
    """Shows the boards without a login; all its files are in one folder.

    Attributes:
        url: where it serves, once started.
    """

    def __init__(self, folder: Path, prometheus_url: str) -> None:
        """Write what it is provisioned with."""
        self.url = ""
        self._folder = folder
        provisioning = folder / "provisioning"
        _write(provisioning / "datasources" / "smelt.yaml", _datasources(prometheus_url))
        _write(provisioning / "dashboards" / "smelt.yaml", _providers())

    def start(self, command: list[str]) -> ChildProcess:
        """Start it and wait until it answers; raises NotReadyError."""
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        home = [f"--homepath={path}" for path in _HOMES if path.is_dir()][:1]
        spec = ProgramSpec(
            arguments=[*command, *home],
            probe=lambda _: url if is_answered(f"{url}/api/health") else "",
            variables={
                "GF_PATHS_DATA": str(self._folder / "data"),
                "GF_PATHS_LOGS": str(self._folder / "logs"),
                "GF_PATHS_PROVISIONING": str(self._folder / "provisioning"),
                "GF_SERVER_HTTP_ADDR": "127.0.0.1",
                "GF_SERVER_HTTP_PORT": str(port),
                # Without a login, as it listens on this host alone and shows figures; and it tells
                # its makers nothing.
                "GF_AUTH_ANONYMOUS_ENABLED": "true",
                "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
                "GF_ANALYTICS_REPORTING_ENABLED": "false",
                "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
            },
        )
        program = ChildProcess(spec, self._folder / "grafana.log", _START_TIMEOUT_S)
        self.url = program.start()["url"]
        return program


def _datasources(prometheus_url: str) -> dict[str, object]:
    source = {
        "name": "Smelt",
        "uid": "smelt",
        "type": "prometheus",
        "access": "proxy",
        "url": prometheus_url,
        "isDefault": True,
    }
    return {"apiVersion": 1, "datasources": [source]}


def _providers() -> dict[str, object]:
    provider = {"name": "Smelt", "type": "file", "options": {"path": str(BOARDS)}}
    return {"apiVersion": 1, "providers": [provider]}


def _write(path: Path, document: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # JSON is YAML too.
    path.write_text(json.dumps(document, indent=1))


def _free_port() -> int:
    """The port that people expect, or any other when it is taken."""
    for port in (_PORT, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AssertionError("port 0 always binds")
