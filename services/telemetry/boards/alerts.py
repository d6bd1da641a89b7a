"""What an alert is, and how rules become the text that Prometheus reads."""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from services.telemetry.boards.promql import RecordingRule


class Severity(StrEnum):
    """How soon somebody must look."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True)
class Alert:
    """One alert rule.

    Attributes:
        wait: how long it must hold before somebody is told, as Prometheus writes durations.
        runbook: the command to begin with; labels of the alert may stand in it.
    """

    name: str
    expr: str
    summary: str
    description: str
    _: KW_ONLY
    wait: str
    severity: Severity
    runbook: str = "smelt status"


@dataclass(frozen=True, kw_only=True)
class AlertGroup:
    """Alerts that are evaluated together."""

    name: str
    alerts: tuple[Alert, ...]


critical = partial(Alert, severity=Severity.CRITICAL)
warning = partial(Alert, severity=Severity.WARNING)


def recording_document(name: str, rules: Iterable[RecordingRule]) -> dict[str, Any]:
    """A rules file with one group of recording rules."""
    written = [{"record": rule.name, "expr": rule.expr} for rule in rules]
    return {"groups": [{"name": name, "rules": written}]}


def alert_document(groups: Iterable[AlertGroup]) -> dict[str, Any]:
    """A rules file with these groups of alerts."""
    return {
        "groups": [
            {"name": group.name, "rules": [_alert_rule(alert) for alert in group.alerts]}
            for group in groups
        ]
    }


def _alert_rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.wait,
        "labels": {"severity": alert.severity.value},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook": alert.runbook,
        },
    }
