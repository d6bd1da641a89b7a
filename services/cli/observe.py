"""`smelt up --observe`: Prometheus beside the fleet, and Grafana where it is installed."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.cli.control_client import watch_fleet
from services.cli.observe_grafana import BOARDS, LocalGrafana, find_grafana
from services.cli.observe_prometheus import LocalPrometheus
from services.contracts.errors import NotReadyError
from services.contracts.fleet_security import FleetSecuritySettings

logger = logging.getLogger(__name__)

# Streams have to end some time; this one is opened anew.
_WATCH_S = 24 * 3600.0
_RETRY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What is to be scraped.

    Attributes:
        controller: `host:port` of FleetControl, which knows the nodes' metrics agents.
        gateway_metrics, controller_metrics: `host:port` of their /metrics.
        security: how FleetControl is spoken to; None does so in the clear.
    """

    controller: str
    gateway_metrics: str
    controller_metrics: str
    security: FleetSecuritySettings | None = None


@dataclass(frozen=True, kw_only=True)
class Observers:
    """Where to look.

    Attributes:
        grafana_url: "" where Grafana is not installed or did not start.
        hint: what to do for boards then; "" otherwise.
    """

    prometheus_url: str
    grafana_url: str
    hint: str


@contextmanager
def observing(
    run_dir: Path, observed: Observed, *, port: int, scrape_interval_s: float
) -> Iterator[Observers]:
    """Run both until the block ends.

    Raises:
        InvalidRequestError: Prometheus is not installed, or its port is taken.
        NotReadyError: Prometheus did not start; the message holds its log's tail.
    """
    folder = run_dir / "observe"
    prometheus = LocalPrometheus(folder / "prometheus", scrape_interval_s)
    with ExitStack() as held:
        held.callback(prometheus.start(port).stop)
        held.enter_context(_following(prometheus, observed))
        grafana_url, hint = start_grafana(folder / "grafana", prometheus.url, held)
        yield Observers(prometheus_url=prometheus.url, grafana_url=grafana_url, hint=hint)


def start_grafana(folder: Path, prometheus_url: str, held: ExitStack) -> tuple[str, str]:
    """Its URL, or what to do without it."""
    by_hand = f"import {BOARDS}/*.json into a Grafana with {prometheus_url} as data source"
    command = find_grafana()
    if not command:
        return "", f"Grafana is not installed: {by_hand}"
    grafana = LocalGrafana(folder, prometheus_url)
    try:
        held.callback(grafana.start(command).stop)
    except NotReadyError as error:
        # Boards are a convenience; the fleet and its figures are there without them.
        logger.warning("%s", error)
        return "", f"Grafana did not start ({folder}/grafana.log): {by_hand}"
    return grafana.url, ""


@contextmanager
def _following(prometheus: LocalPrometheus, observed: Observed) -> Iterator[None]:
    """Keep the targets what the fleet is, in a thread."""
    is_over = threading.Event()
    _set_targets(prometheus, observed, ())
    thread = threading.Thread(
        target=_follow, args=(prometheus, observed, is_over), name="observe", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        # Not joined: it waits for the controller, whose end, a moment later, is its own.
        is_over.set()


def _follow(prometheus: LocalPrometheus, observed: Observed, is_over: threading.Event) -> None:
    known: list[str] = []
    while not is_over.is_set():
        try:
            for snapshot in watch_fleet(observed.controller, _WATCH_S, observed.security):
                agents = list(snapshot.metrics_addresses)
                if agents != known and not is_over.is_set():
                    known = agents
                    _set_targets(prometheus, observed, agents)
        except NotReadyError:
            # The controller is started again by whoever started it.
            is_over.wait(_RETRY_S)


def _set_targets(prometheus: LocalPrometheus, observed: Observed, agents: Sequence[str]) -> None:
    prometheus.set_targets(
        {
            "gateway": [observed.gateway_metrics],
            "controller": [observed.controller_metrics],
            "replicas": agents,
        }
    )
