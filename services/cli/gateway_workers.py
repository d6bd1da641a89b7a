"""How the workers of a local fleet's gateway fare, read off its metrics."""

from http.client import HTTPException
from urllib.request import urlopen

from services.cli.fleet_file import RunningFleet
from services.telemetry import catalog
from services.telemetry.metric import Metric

# The gateway asks all its workers meanwhile.
_TIMEOUT_S = 10.0


def gateway_workers(running: RunningFleet) -> dict[str, int] | None:
    """How many there are to be, serve now, and were started again.

    None for a gateway of one process, and for one that does not say.
    """
    if running.num_gateway_workers == 1:
        return None
    try:
        with urlopen(f"http://{running.metrics_address}/metrics", timeout=_TIMEOUT_S) as answer:
            page: str = answer.read().decode(errors="replace")
    except (OSError, HTTPException):
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
        words += f", {restarts} {'restart' if restarts == 1 else 'restarts'}"
    return words


def _value(page: str, metric: Metric) -> int:
    """The value of a metric without labels; 0 when it is not there."""
    lines = [line.split() for line in page.splitlines()]
    return next((round(float(words[1])) for words in lines if words[:1] == [metric.name]), 0)
