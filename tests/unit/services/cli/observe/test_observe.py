"""What Prometheus and Grafana are told, and what is said where they are not installed."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from services.cli.observe import observers as observe
from services.cli.observe.local_grafana import BOARDS, LocalGrafana, find_grafana
from services.cli.observe.local_prometheus import LocalPrometheus, require_prometheus
from services.contracts.errors import InvalidRequestError

# Stands in for Grafana, which no package source of this project has: it serves as that does.
GRAFANA = """#!{python}
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()
print(sys.argv[1:], os.environ["GF_PATHS_PROVISIONING"], flush=True)
address = (os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"]))
http.server.HTTPServer(address, Handler).serve_forever()
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH, empty."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_without_prometheus_the_error_says_how_to_install_it(programs: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"deploy/local/install_prometheus\.sh"):
        require_prometheus()


def test_up_refuses_before_it_starts_anything(programs: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.cli.main", "up", "--observe"],
        env=dict(os.environ) | {"SMELT_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "needs the program 'prometheus'" in done.stderr
    assert not list((tmp_path / "home").rglob("*.log"))


def test_promtool_accepts_configuration_and_rules(tmp_path: Path) -> None:
    LocalPrometheus(tmp_path, 5.0)
    document = yaml.safe_load((tmp_path / "prometheus.yml").read_text())
    assert document["global"]["scrape_interval"] == "5000ms"
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool not found: deploy/local/install_prometheus.sh installs it")
    checked = subprocess.run(
        [promtool, "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "rules found" in checked.stdout


def test_targets_carry_job_and_namespace(tmp_path: Path) -> None:
    prometheus = LocalPrometheus(tmp_path, 5.0)
    prometheus.set_targets({"gateway": ["127.0.0.1:1"], "replicas": ["10.0.0.1:2", "10.0.0.2:2"]})
    assert json.loads((tmp_path / "targets.json").read_text()) == [
        {"targets": ["127.0.0.1:1"], "labels": {"job": "gateway", "namespace": "local"}},
        {
            "targets": ["10.0.0.1:2", "10.0.0.2:2"],
            "labels": {"job": "replicas", "namespace": "local"},
        },
    ]


def test_only_our_own_series_of_an_agent_are_kept(tmp_path: Path) -> None:
    LocalPrometheus(tmp_path, 5.0)
    document = yaml.safe_load((tmp_path / "prometheus.yml").read_text())
    (rule,) = document["scrape_configs"][0]["metric_relabel_configs"]
    keeps = re.compile(rule["regex"])
    assert keeps.fullmatch("replicas;ray_smelt_batch_size_sum")
    assert keeps.fullmatch("controller;smelt_builds_total")
    assert keeps.fullmatch("gateway;smelt_requests_total")
    assert not keeps.fullmatch("replicas;ray_node_cpu_utilization")


def test_a_port_that_is_taken_is_told_with_the_option_to_change(tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus not found: deploy/local/install_prometheus.sh installs it")
    first = LocalPrometheus(tmp_path / "first", 5.0)
    running = first.start(0)
    port = int(first.url.rpartition(":")[2])
    with pytest.raises(InvalidRequestError, match=f":{port}, another program does; choose another"):
        LocalPrometheus(tmp_path / "second", 5.0).start(port)
    running.stop()


def test_without_grafana_one_line_says_what_to_import(programs: Path, tmp_path: Path) -> None:
    assert find_grafana() == []
    with ExitStack() as held:
        url, hint = observe.start_grafana(tmp_path, "http://127.0.0.1:9090", held)
    assert url == ""
    assert f"{BOARDS}/*.json" in hint
    assert "http://127.0.0.1:9090" in hint
    assert len(list(BOARDS.glob("*.json"))) == 3


def test_grafana_is_provisioned_and_waited_for(programs: Path, tmp_path: Path) -> None:
    write_program(programs / "grafana", GRAFANA.format(python=sys.executable))
    grafana = LocalGrafana(tmp_path / "grafana", "http://127.0.0.1:9090")
    program = grafana.start(find_grafana())
    try:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", grafana.url)
        assert f"['server'] {tmp_path}/grafana/provisioning" in program.log_text()
    finally:
        program.stop()
    folder = tmp_path / "grafana/provisioning"
    sources = yaml.safe_load((folder / "datasources/smelt.yaml").read_text())["datasources"]
    assert [(s["type"], s["url"], s["isDefault"]) for s in sources] == [
        ("prometheus", "http://127.0.0.1:9090", True)
    ]
    (provider,) = yaml.safe_load((folder / "dashboards/smelt.yaml").read_text())["providers"]
    assert provider["options"]["path"] == str(BOARDS)


def test_a_grafana_that_fails_costs_the_boards_only(programs: Path, tmp_path: Path) -> None:
    write_program(programs / "grafana-server", "#!/bin/sh\necho broken plugin\nexit 1\n")
    with ExitStack() as held:
        url, hint = observe.start_grafana(tmp_path, "http://127.0.0.1:9090", held)
    assert url == ""
    assert hint.startswith(f"Grafana did not start ({tmp_path}/grafana.log)")
