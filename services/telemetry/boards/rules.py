"""The rules as text; needs nothing but YAML, so a fleet can load them where it runs."""

from pathlib import Path
from typing import Any, Final

import yaml

_FOLDER: Final = Path(__file__).parent
_FILES: Final = ("recording_rules.yml", "alert_rules.yml")
_HEADER: Final = "# Made by .ci/generate from services/telemetry/boards; do not edit.\n"


def read_rules() -> list[dict[str, Any]]:
    """Every recording rule and alert, in Prometheus' own words."""
    return [rule for name in _FILES for group in _groups(name) for rule in group["rules"]]


def rule_files() -> dict[str, str]:
    """Text by file name."""
    return {name: _as_yaml({"groups": _groups(name)}) for name in _FILES}


def prometheus_rule() -> str:
    """The same rules as the one object that the Prometheus operator reads."""
    return _as_yaml(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "smelt", "labels": {"app.kubernetes.io/part-of": "smelt"}},
            "spec": {"groups": [group for name in _FILES for group in _groups(name)]},
        }
    )


def _groups(name: str) -> list[dict[str, Any]]:
    document: dict[str, Any] = yaml.safe_load(_FOLDER.joinpath(name).read_text())
    return list(document["groups"])


def _as_yaml(document: dict[str, Any]) -> str:
    """With the note that it is generated; long expressions keep one line."""
    return _HEADER + yaml.safe_dump(document, sort_keys=False, width=100_000)
