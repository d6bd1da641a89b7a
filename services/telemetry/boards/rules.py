"""The rules files as text; needs nothing but YAML, so a fleet can load them where it runs."""

from typing import Any, Final

import yaml

from services.telemetry.boards.alert_rules import ALERT_GROUPS
from services.telemetry.boards.alerts import alert_document, recording_document
from services.telemetry.boards.recording_rules import RECORDING_RULES

RECORDING_FILE: Final = "recording_rules.yml"
ALERT_FILE: Final = "alert_rules.yml"
_HEADER = "# Made by .ci/generate from services/telemetry/boards; do not edit.\n"


def rule_files() -> dict[str, str]:
    """Text by file name."""
    return {
        RECORDING_FILE: as_yaml(_recording()),
        ALERT_FILE: as_yaml(alert_document(ALERT_GROUPS)),
    }


def prometheus_rule() -> str:
    """The same rules as the one object that the Prometheus operator reads."""
    groups = [*_recording()["groups"], *alert_document(ALERT_GROUPS)["groups"]]
    return as_yaml(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "smelt", "labels": {"app.kubernetes.io/part-of": "smelt"}},
            "spec": {"groups": groups},
        }
    )


def as_yaml(document: dict[str, Any]) -> str:
    """A document with the note that it is generated; long expressions keep one line."""
    return _HEADER + yaml.safe_dump(document, sort_keys=False, width=100_000)


def _recording() -> dict[str, Any]:
    return recording_document("smelt-recorded", RECORDING_RULES)
