"""Questions to a real Prometheus, and to promtool."""

import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

# Two cores may be shared by several fleets; it only ends a test that fails.
WAIT_S = 180.0
# Prometheus and the exporters tell nobody when they know more: one has to ask again.
_POLL_S = 0.2
Labels = dict[str, str]
Rows = list[tuple[Labels, float]]


def is_prometheus_installed() -> bool:
    """Whether both of its programs are on the PATH."""
    return all(shutil.which(name) for name in ("prometheus", "promtool"))


def require_prometheus() -> None:
    """Skip, saying what to install; under CI=true a missing Prometheus is a failure."""
    if is_prometheus_installed():
        return
    message = "prometheus or promtool not found: deploy/local/install_prometheus.sh installs it"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """The JSON of one call of its HTTP API."""
        with urlopen(f"{self.url}{path}?{urlencode(parameters)}", timeout=30) as page:
            answer = json.loads(page.read())
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> Rows:
        """The instant vector of an expression: labels and value of each series."""
        result = self.get("/api/v1/query", query=expression)["result"]
        return [(entry["metric"], float(entry["value"][1])) for entry in result]

    def wait_for(self, expression: str, is_enough: Callable[[Rows], bool] = bool) -> Rows:
        """The first answer that is enough; one that is not empty when nothing else is asked."""
        rows: Rows = wait_until(lambda: self.query(expression), is_enough, expression)
        return rows


def has_figures(rows: Rows) -> bool:
    """Whether there is a figure; a share of nothing is none."""
    return any(math.isfinite(value) for _, value in rows)


def wait_until(look: Callable[[], Any], is_enough: Callable[[Any], bool], what: str) -> Any:
    """What `look` returns once it is enough; fails, with the last it saw, after WAIT_S.

    Prometheus scrapes in its own time and tells nobody, so it is asked again and again.
    """
    deadline_s = time.monotonic() + WAIT_S
    while not is_enough(seen := look()):
        if time.monotonic() > deadline_s:
            pytest.fail(f"{what}: after {WAIT_S:g} s still {seen}")
        time.sleep(_POLL_S)
    return seen


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
