"""Every query of every board, asked of a Prometheus that scraped a fleet under load."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.fleet.prometheus.server import has_figures, wait_until
from tests.integration.fleet.prometheus.traffic import WATCHED

if TYPE_CHECKING:
    from tests.integration.fleet.prometheus.conftest import Watched

BOARDS = sorted(Path(__file__).parents[4].joinpath("deploy/grafana").glob("*.json"))
# What Grafana puts in when a person chose nothing.
CHOSEN = {
    "$__rate_interval": "1m",
    "$namespace": ".*",
    "$model": ".*",
    "$version": ".*",
    "$generation": ".*",
}
LABEL_VALUES = re.compile(r"label_values\((.*), (\w+)\)")


def queries() -> Iterator["pytest.ParameterSet"]:
    for path in BOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                name = f"{path.stem}: {panel['title']} {target['refId']}"
                yield pytest.param(target["expr"], id=name)


def variables() -> Iterator["pytest.ParameterSet"]:
    for path in BOARDS:
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                yield pytest.param(variable["query"], id=f"{path.stem}: {variable['name']}")


def filled(text: str) -> str:
    for name, value in CHOSEN.items():
        text = text.replace(name, value)
    assert "$" not in text
    return text


@pytest.mark.parametrize("expr", list(queries()))
def test_a_panel_shows_figures(watched: "Watched", expr: str) -> None:
    watched.prometheus.wait_for(filled(expr), has_figures)


@pytest.mark.parametrize("query", list(variables()))
def test_a_variable_offers_values(watched: "Watched", query: str) -> None:
    found = LABEL_VALUES.fullmatch(filled(query))
    assert found
    series, label = found.groups()
    path = f"/api/v1/label/{label}/values"
    wait_until(lambda: watched.prometheus.get(path, **{"match[]": series}), bool, query)


def test_a_wrong_name_would_be_found(watched: "Watched") -> None:
    assert not has_figures(watched.prometheus.query("rate(smelt_request_total[1m])"))


def test_every_rule_is_evaluated(watched: "Watched") -> None:
    def rules() -> list[dict[str, str]]:
        groups = watched.prometheus.get("/api/v1/rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    healths = wait_until(
        lambda: {rule["name"]: rule["health"] for rule in rules()},
        lambda found: found and "unknown" not in found.values(),
        "evaluation of rules",
    )
    assert set(healths.values()) == {"ok"}
    assert sum(name.startswith("Smelt") for name in healths) >= 8


def test_what_is_wrong_here_is_about_to_alert(watched: "Watched") -> None:
    """Not firing at once: each waits for some minutes, in case it mends itself.

    What failed for a generation that has no node is none of them.
    """
    named = 'alertname=~"Smelt(NoProvenEngine|BuildFailing|ProofFailing)"'
    # Whatever the tests before took: they may fire by now.
    found = watched.prometheus.wait_for(
        f'max_over_time(ALERTS{{{named}, {WATCHED}, alertstate="pending"}}[1h])',
        lambda rows: len(rows) == 2,
    )
    alerts = {row["alertname"]: (row["model"], row["generation"]) for row, _ in found}
    assert alerts == {
        "SmeltNoProvenEngine": ("bare", watched.generation),
        "SmeltProofFailing": ("bare", watched.generation),
    }
