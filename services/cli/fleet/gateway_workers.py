"""The workers of a local fleet's gateway, from its metrics."""

import os
from typing import Final

from services.cli.fleet.fleet_file import RunningFleet
from services.contracts.text.words import counted
from services.engines.device.cuda_driver import first_cuda_device
from services.telemetry import catalog
from services.telemetry.metric import Metric
from services.telemetry.metrics_page import metrics_page

# On a GPU a request costs its gateway half of what it costs its replica, and clients have the rest.
_SHARE_OF_CORES: Final = 3 / 8
_MOST: Final = 16


def default_workers() -> int:
    """One, and on hosts with a GPU so many that they are not its bound."""
    if first_cuda_device() is None:
        return 1
    return max(1, min(round(_SHARE_OF_CORES * (os.cpu_count() or 1)), _MOST))


def gateway_workers(running: RunningFleet) -> dict[str, int] | None:
    """How many there are to be, serve now, and were started again.

    None for a gateway of one process, and for one that does not answer.
    """
    if running.num_gateway_workers == 1:
        return None
    page = metrics_page(running.metrics_address)
    if page is None:
        return None
    return {
        "wanted": running.num_gateway_workers,
        "serving": _value(page, catalog.WORKERS_SERVING),
        "restarts": _value(page, catalog.WORKER_RESTARTS),
    }


def workers_words(running: RunningFleet, workers: dict[str, int] | None) -> str:
    """The same in words; "" for a gateway of one process."""
    num = running.num_gateway_workers
    if num == 1:
        return ""
    words = f"{num} gateway workers"
    if workers and workers["serving"] < num:
        words = f"{workers['serving']} of {words} serve"
    if workers and (restarts := workers["restarts"]):
        words += f", {counted(restarts, 'restart')}"
    return words


def _value(page: str, metric: Metric) -> int:
    """The value of a metric without labels; 0 when it is not there."""
    lines = [line.split() for line in page.splitlines()]
    return next((round(float(words[1])) for words in lines if words[:1] == [metric.name]), 0)
