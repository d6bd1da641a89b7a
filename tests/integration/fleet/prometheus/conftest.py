"""The fleet with traffic and builds behind it, and the Prometheus that scrapes it."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from services.engines.device.device_probe import probe_device
from tests.integration.fleet.conftest import Served
from tests.integration.fleet.local_fleet import LocalFleet
from tests.integration.fleet.onnx_files import FEATURES
from tests.integration.fleet.prometheus.server import Prometheus, require_prometheus
from tests.integration.fleet.prometheus.traffic import ask_known_numbers, endless


@dataclass(frozen=True)
class Watched:
    """The fleet, its Prometheus, and where things are.

    Attributes:
        generation: of this machine.
        engine_digest: the engine that model `counted` serves with.
        agents: addresses of Ray's metrics agents.
    """

    fleet: LocalFleet
    prometheus: Prometheus
    generation: str
    engine_digest: str
    agents: list[str]


@pytest.fixture(scope="package")
def watched(served: Served) -> Iterator[Watched]:
    """Known numbers of requests to `counted` and `bare`; `busy` is always asked."""
    require_prometheus()
    fleet = served.fleet
    fleet.wait_until(lambda seen: bool(seen.metrics_addresses))
    agents = fleet.smelt("status")["replica_metrics_addresses"]
    (replica,) = fleet.replicas("counted")
    ask_known_numbers(fleet.address)
    with endless(fleet.address, "busy", FEATURES):
        yield Watched(
            fleet,
            Prometheus(fleet.running["prometheus_url"]),
            probe_device().generation,
            replica["engine_digest"],
            agents,
        )
