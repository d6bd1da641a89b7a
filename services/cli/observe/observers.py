"""`smelt up --observe`: Prometheus beside the fleet, and Grafana where it is installed."""

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from services.cli.fleet.control_client import watch_fleet
from services.cli.fleet.fleet_file import RunningFleet
from services.cli.observe.local_grafana import BOARDS, LocalGrafana, find_grafana
from services.cli.observe.local_prometheus import LocalPrometheus
from services.cli.settings import CliSettings
from services.contracts.errors import NotReadyError

logger = logging.getLogger(__name__)

# Of one stream, which is opened anew after it.
_WATCH_S = 24 * 3600.0
_RETRY_S = 1.0


def start_observers(
    settings: CliSettings, running: RunningFleet, *, port: int, held: ExitStack
) -> RunningFleet:
    """Start both; returns the fleet with where they serve.

    Args:
        settings: of the command line.
        running: whose gateway, controller and nodes are scraped.
        port: of Prometheus; 0 takes a free one.
        held: ends both when it closes.

    Raises:
        InvalidRequestError: Prometheus is not installed, or its port is taken.
        NotReadyError: Prometheus did not start; the message holds its log's tail.
    """
    folder = settings.run_dir / "observe"
    prometheus = LocalPrometheus(folder / "prometheus", settings.scrape_interval_s)
    held.callback(prometheus.start(port).stop)
    _follow_targets(prometheus, settings, running, held)
    grafana_url, hint = start_grafana(folder / "grafana", prometheus.url, held)
    urls = {"prometheus_url": prometheus.url, "grafana_url": grafana_url}
    return running.model_copy(update=urls | {"boards_hint": hint})


def start_grafana(folder: Path, prometheus_url: str, held: ExitStack) -> tuple[str, str]:
    """Start Grafana with Smelt's boards, where it is installed.

    Args:
        folder: for its data and log.
        prometheus_url: data source of the boards.
        held: stops it when it is closed.

    Returns:
        Its URL and "", or "" and how to get the boards without it.
    """
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


def _follow_targets(
    prometheus: LocalPrometheus, settings: CliSettings, running: RunningFleet, held: ExitStack
) -> None:
    """Scrape what the fleet is made of, also when that changes; in a thread."""
    is_over = threading.Event()
    # Not joined: it waits for the controller, which ends a moment later.
    held.callback(is_over.set)
    gateway: dict[str, Sequence[str]] = {
        "gateway": [running.metrics_address],
        "controller": [running.controller_metrics_address],
    }
    prometheus.set_targets(gateway)

    def follow() -> None:
        while not is_over.is_set():
            try:
                for snapshot in watch_fleet(running.controller, _WATCH_S, settings):
                    # The folder may belong to the next fleet by then.
                    if not is_over.is_set():
                        agents = list(snapshot.metrics_addresses)
                        prometheus.set_targets({**gateway, "replicas": agents})
            except NotReadyError:
                # The controller is started again by the supervisor.
                is_over.wait(_RETRY_S)

    threading.Thread(target=follow, name="observe", daemon=True).start()
