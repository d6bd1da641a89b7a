"""Alert and recording rules: promtool runs the cases of rules/*.yml against what is committed."""

import os
import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from services.cli.main import app
from services.telemetry.boards.rules import read_rules
from services.telemetry.boards.selectors import filtered

ROOT = Path(__file__).parents[3]
CASES = sorted(Path(__file__).parent.joinpath("rules").glob("*.yml"))
RULES = [ROOT / "deploy/prometheus" / name for name in ("recording_rules.yml", "alert_rules.yml")]
ALERTS = [rule for rule in read_rules() if "alert" in rule]
RECORDED = [rule for rule in read_rules() if "record" in rule]
LABELS = re.compile(r"by \(([^)]*)\)")
LEVELS = {
    "namespace": {"namespace"},
    "model": {"namespace", "model"},
    "version": {"namespace", "model", "version"},
    "generation": {"namespace", "model", "version", "generation"},
}


def promtool(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run it; a CI that lacks it fails."""
    path = shutil.which("promtool")
    if path is None:
        message = "promtool not found: deploy/local/install_prometheus.sh installs it"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=False)


def outcomes() -> dict[str, set[bool]]:
    """For each alert, whether a case fires it and whether a case leaves it silent."""
    found: defaultdict[str, set[bool]] = defaultdict(set)
    for path in CASES:
        for case in yaml.safe_load(path.read_text())["tests"]:
            for test in case["alert_rule_test"]:
                found[test["alertname"]].add(bool(test["exp_alerts"]))
    return found


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_promtool_accepts_the_rules(path: Path) -> None:
    checked = promtool("check", "rules", path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_case_ends_as_it_says(path: Path) -> None:
    tested = promtool("test", "rules", path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_wrong_expectation_is_found(tmp_path: Path) -> None:
    document: Any = yaml.safe_load(CASES[0].read_text())
    document["rule_files"] = [str(path) for path in RULES]
    fires = next(c for c in document["tests"] if c["alert_rule_test"][0]["exp_alerts"])
    fires["alert_rule_test"][0]["exp_alerts"] = []
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(yaml.safe_dump(document))
    assert promtool("test", "rules", wrong).returncode != 0


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    assert outcomes() == {alert["alert"]: {True, False} for alert in ALERTS}
    assert len(ALERTS) >= 8


def test_every_runbook_names_commands_that_can_be_typed() -> None:
    """With their arguments and options: Click parses them, and runs nothing."""
    group: Any = typer.main.get_command(app)
    for alert in ALERTS:
        for line in re.sub(r"\{\{ \$labels\.\w+ \}\}", "x", alert["annotations"]["runbook"]).split(
            "; then "
        ):
            program, command, *arguments = shlex.split(line)
            assert program == "smelt", alert["alert"]
            group.commands[command].make_context(command, arguments)


def test_every_recorded_series_is_used() -> None:
    """By an alert or by a board: what nobody reads costs disk for nothing."""
    boards = ROOT.joinpath("deploy/grafana").glob("*.json")
    readers = "".join(alert["expr"] for alert in ALERTS) + "".join(b.read_text() for b in boards)
    assert [rule["record"] for rule in RECORDED if rule["record"] not in readers] == []


def test_every_rule_asks_for_series_and_labels_that_exist() -> None:
    for rule in (*RECORDED, *ALERTS):
        assert filtered(rule["expr"]) == rule["expr"]


def test_the_name_of_a_recorded_series_says_its_labels() -> None:
    for rule in RECORDED:
        kept = {label for by in LABELS.findall(rule["expr"]) for label in by.split(", ")} - {"le"}
        assert kept == LEVELS[rule["record"].partition(":")[0]], rule["record"]
