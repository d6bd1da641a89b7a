"""A Prometheus beside the fleet: its configuration, its targets, its start."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from services.cli.fleet.child_process import ChildProcess, ProgramSpec
from services.contracts.errors import InvalidRequestError, NotReadyError
from services.telemetry.metrics_page import is_answered

# What Kubernetes puts on the series of a pod; a fleet on one host has none of its own.
LOCAL_NAMESPACE: Final = "local"
RETENTION: Final = "15d"
_START_TIMEOUT_S = 30.0
_TAKEN = "address already in use"
_LISTENS = re.compile(r'msg="Listening on".* address=(\S+)')


def require_prometheus() -> str:
    """The program's path; raises InvalidRequestError with the command that installs it."""
    path = shutil.which("prometheus")
    if path is None:
        raise InvalidRequestError(
            "smelt up --observe needs the program 'prometheus', and PATH has none; install it: "
            "deploy/local/install_prometheus.sh, or sudo apt-get install prometheus"
        )
    return path


class LocalPrometheus:
    """Scrapes gateway, controller and nodes; all its files are in one folder.

    Attributes:
        url: where it serves, once started.
    """

    def __init__(self, folder: Path, scrape_interval_s: float) -> None:
        """Write configuration and rules; `set_targets` adds what to scrape."""
        # A fleet that is not observed starts sooner without YAML.
        from services.telemetry.boards.rules import rule_files

        self.url = ""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        rules = rule_files()
        for name, text in rules.items():
            (folder / name).write_text(text)
        (folder / "prometheus.yml").write_text(_config(list(rules), scrape_interval_s))
        self.set_targets({})

    def set_targets(self, targets: dict[str, Sequence[str]]) -> None:
        """Scrape these addresses, by job; Prometheus watches the file."""
        document = [
            {"targets": list(addresses), "labels": {"job": job, "namespace": LOCAL_NAMESPACE}}
            for job, addresses in targets.items()
        ]
        # Renamed into place, so that it is never read half.
        partial = self._folder / "targets.json.partial"
        partial.write_text(json.dumps(document, indent=1))
        partial.replace(self._folder / "targets.json")

    def start(self, port: int) -> ChildProcess:
        """Start it and wait until it serves.

        Raises:
            InvalidRequestError: Prometheus is not installed, or the port is taken.
            NotReadyError: it did not start; the message holds its log's tail.
        """
        command = [
            require_prometheus(),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--storage.tsdb.retention.time={RETENTION}",
            f"--web.listen-address=127.0.0.1:{port}",
            # From a slow request on a board to its trace.
            "--enable-feature=exemplar-storage",
        ]
        spec = ProgramSpec(arguments=command, probe=_url_in)
        program = ChildProcess(spec, self._folder / "prometheus.log", _START_TIMEOUT_S)
        try:
            self.url = program.start()["url"]
        except NotReadyError as error:
            if _TAKEN not in program.log_text():
                raise
            raise InvalidRequestError(
                f"Prometheus cannot listen on 127.0.0.1:{port}, another program does; "
                "choose another --observe-port, 0 takes a free one"
            ) from error
        return program


def _url_in(log: str) -> str:
    """The URL that it logged, once it serves there; "" before."""
    # From its log, as port 0 takes any; it listens before it can answer.
    listens = _LISTENS.search(log)
    url = f"http://{listens[1]}" if listens else ""
    return url if url and is_answered(f"{url}/-/ready") else ""


def _config(rules: list[str], scrape_interval_s: float) -> str:
    interval = f"{round(scrape_interval_s * 1000)}ms"
    listed = "".join(f"  - {name}\n" for name in rules)
    return (
        f"global:\n"
        f"  scrape_interval: {interval}\n"
        f"  scrape_timeout: {interval}\n"
        f"  evaluation_interval: {interval}\n"
        f"rule_files:\n{listed}"
        f"scrape_configs:\n"
        f"  - job_name: smelt\n"
        f"    file_sd_configs:\n"
        f"      - files: [targets.json]\n"
        f"    metric_relabel_configs:\n"
        f"      # Of what Ray's agents export, only what our replicas record.\n"
        f"      - source_labels: [job, __name__]\n"
        f"        regex: replicas;ray_smelt_.*|(gateway|controller);.*\n"
        f"        action: keep\n"
    )
