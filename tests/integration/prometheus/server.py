"""A real Prometheus that scrapes quickly, and questions to it."""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

# Ray's agents report to their exporter every ten seconds; a loaded machine is later still.
WAIT_S = 90.0
# Often, so that a compiler which lives for seconds is seen.
SCRAPE_INTERVAL = "200ms"
# Prometheus and the exporters tell nobody when they know more: one has to ask again.
_POLL_S = 0.2
Labels = dict[str, str]


def require_prometheus() -> None:
    """Skip, saying what to install; under CI=true a missing Prometheus is a failure."""
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    if not missing:
        return
    message = f"{', '.join(missing)} not found: deploy/local/install_prometheus.sh installs it"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    address: str

    def get(self, path: str, **parameters: str) -> Any:
        """The JSON of one call of its HTTP API."""
        with urlopen(f"http://{self.address}{path}?{urlencode(parameters)}", timeout=30) as page:
            return json.loads(page.read())

    def query(self, expression: str) -> list[tuple[Labels, float]]:
        """The instant vector of an expression: labels and value of each series."""
        answer = self.get("/api/v1/query", query=expression)
        assert answer["status"] == "success", answer
        return [(entry["metric"], float(entry["value"][1])) for entry in answer["data"]["result"]]

    def wait_for(
        self,
        expression: str,
        is_enough: Callable[[list[tuple[Labels, float]]], bool] = bool,
    ) -> list[tuple[Labels, float]]:
        """The first answer that is enough; one that is not empty when nothing else is asked."""
        return wait_until(lambda: self.query(expression), is_enough, expression)


def wait_until(look: Callable[[], Any], is_enough: Callable[[Any], bool], what: str) -> Any:
    """What `look` returns once it is enough; fails, with the last it saw, after WAIT_S."""
    deadline_s = time.monotonic() + WAIT_S
    while not is_enough(seen := look()):
        if time.monotonic() > deadline_s:
            pytest.fail(f"{what}: after {WAIT_S:g} s still {seen}")
        time.sleep(_POLL_S)
    return seen


@contextmanager
def prometheus(folder: Path, targets: dict[str, list[str]]) -> Iterator[Prometheus]:
    """A server that scrapes these addresses, by job, until the block ends."""
    address = f"127.0.0.1:{free_port()}"
    config = folder / "prometheus.yml"
    config.write_text(_config(targets))
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: _is_ready(address), bool, f"prometheus, log {folder}/prometheus.log")
        yield Prometheus(address)
    finally:
        process.terminate()
        process.wait(30)


def check_metrics(page: str) -> "subprocess.CompletedProcess[str]":
    """What promtool says of a page in the exposition format."""
    return subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )


def page_of(address: str) -> str:
    """What /metrics of an endpoint shows now."""
    with urlopen(f"http://{address}/metrics", timeout=30) as page:
        text: str = page.read().decode()
    return text


def _is_ready(address: str) -> bool:
    try:
        with urlopen(f"http://{address}/-/ready", timeout=5) as page:
            return bool(page.status == 200)
    except (URLError, ConnectionError):
        return False


def _config(targets: dict[str, list[str]]) -> str:
    lines = [f"global: {{scrape_interval: {SCRAPE_INTERVAL}, scrape_timeout: {SCRAPE_INTERVAL}}}",
             "scrape_configs:"]  # fmt: skip
    for job, addresses in targets.items():
        lines += [f"- job_name: {job}", "  static_configs:", f"  - targets: {addresses}"]
    return "\n".join(lines) + "\n"
