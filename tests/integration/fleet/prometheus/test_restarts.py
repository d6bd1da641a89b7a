"""The controller is killed: figures and targets go on.

Last of this folder, as it disturbs the fleet that the others look at.
"""

from typing import TYPE_CHECKING

import pytest

from services.telemetry import catalog
from tests.integration.fleet.prometheus.traffic import WATCHED

if TYPE_CHECKING:
    from tests.integration.fleet.prometheus.conftest import Watched

pytestmark = pytest.mark.slow

CONNECTED = catalog.CONTROLLER_CONNECTED.name


def test_a_killed_controller_shows_and_nodes_are_scraped_on(
    watched: "Watched",
) -> None:
    watched.fleet.child("services.controller").kill()
    watched.prometheus.wait_for(f"min_over_time({CONNECTED}[5m]) == 0")
    watched.prometheus.wait_for(f"{CONNECTED} == 1")
    seen = watched.fleet.wait_until(lambda fleet: bool(fleet.metrics_addresses))
    (agent,) = seen.metrics_addresses
    assert [agent] == watched.agents
    watched.prometheus.wait_for(f'up{{job="replicas", instance="{agent}"}} == 1')
    ready = f'{catalog.REPLICAS_ATTACHED.name}{{state="ready", {WATCHED}}}'
    watched.prometheus.wait_for(f"sum ({ready}) == 3")
    # The fleet is others' too.
    for model, num_replicas in (("linear", 2), ("noop", 1)):
        watched.fleet.wait_ready(model, num_replicas)


def test_totals_of_builds_went_on_where_they_were(watched: "Watched") -> None:
    name = catalog.BUILDS.name
    watched.prometheus.wait_for(name)
    ((_, resets),) = watched.prometheus.query(f"sum (resets({name}[10m]))")
    assert resets == 0
