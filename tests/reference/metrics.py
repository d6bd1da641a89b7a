"""Every metric of the catalogue by the process that records it, and every alert."""

import re
from typing import Any

from services.telemetry import catalog
from services.telemetry.boards.rules import read_rules
from services.telemetry.metric import Metric
from tests.reference.text import page, table

METRICS = (
    "Gateway and controller serve `/metrics` themselves (`smelt up` prints where). What "
    "replicas record is exported by Ray's agent on each node, with the prefix `ray_`: "
    "`smelt status --json` says where. Times are seconds. `SMELT_GATEWAY_TRITON_METRICS=true` adds "
    "Triton's `nv_inference_*`."
)
ALERTS = (
    "Rules for Prometheus, in `deploy/prometheus/` (`operator/` has them as a PrometheusRule). "
    "Each alert names the command to begin with. MODEL, VERSION, GENERATION and KIND are labels of "
    "the alert."
)
PROCESSES = (
    ("Gateway", catalog.GATEWAY_METRICS),
    ("Gateway with several workers", catalog.GATEWAY_WORKERS_METRICS),
    ("Replica (prefix `ray_`)", catalog.REPLICA_METRICS),
    ("Controller", catalog.CONTROLLER_METRICS),
)
_LABEL = re.compile(r"\{\{ *\$labels\.(\w+) *\}\}")
_VALUE = re.compile(r"\{\{ *\$value[^}]*\}\}")


def metrics_page() -> str:
    return page("Metrics", METRICS, *(_metrics(*process) for process in PROCESSES))


def alerts_page() -> str:
    rows = [
        (
            f"`{rule['alert']}`",
            rule["labels"]["severity"],
            rule["for"],
            "{summary}. {description}".format_map(texts := _texts(rule)),
            f"`{texts['runbook']}`",
        )
        for rule in read_rules()
        if "alert" in rule
    ]
    return page(
        "Alerts", ALERTS, table(("alert", "severity", "after", "means", "begin with"), rows)
    )


def _texts(rule: dict[str, Any]) -> dict[str, str]:
    return {name: _text(template) for name, template in rule["annotations"].items()}


def _metrics(title: str, metrics: tuple[Metric, ...]) -> str:
    rows = (
        (f"`{m.name}`", m.kind, ", ".join(f"`{label}`" for label in m.labels), m.help)
        for m in metrics
    )
    return f"## {title}\n\n{table(('metric', 'kind', 'labels', 'meaning'), rows)}"


def _text(template: str) -> str:
    return _VALUE.sub("N", _LABEL.sub(lambda label: label[1].upper(), template))
