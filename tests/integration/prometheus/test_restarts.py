"""The controller is killed, and with it the Ray it started: figures and targets go on.

Last of this folder, as it disturbs the fleet that the others look at.
"""

from typing import TYPE_CHECKING

from services.telemetry import catalog

if TYPE_CHECKING:
    from tests.integration.prometheus.conftest import Watched

CONNECTED = catalog.CONTROLLER_CONNECTED.name


def test_a_killed_controller_shows_and_its_successors_nodes_are_scraped(
    watched: "Watched",
) -> None:
    watched.fleet.child("services.controller").kill()
    watched.prometheus.wait_for(f"min_over_time({CONNECTED}[5m]) == 0")
    watched.prometheus.wait_for(f"{CONNECTED} == 1")
    seen = watched.fleet.wait_until(
        lambda fleet: (
            bool(fleet.metrics_addresses) and list(fleet.metrics_addresses) != watched.agents
        )
    )
    (agent,) = seen.metrics_addresses
    watched.prometheus.wait_for(f'up{{job="replicas", instance="{agent}"}} == 1')
    watched.prometheus.wait_for(f'sum ({catalog.REPLICAS_ATTACHED.name}{{state="ready"}}) == 3')


def test_totals_of_builds_went_on_where_they_were(watched: "Watched") -> None:
    name = catalog.BUILDS.name
    watched.prometheus.wait_for(name)
    ((_, resets),) = watched.prometheus.query(f"sum (resets({name}[10m]))")
    assert resets == 0
