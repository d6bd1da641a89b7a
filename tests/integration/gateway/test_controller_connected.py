"""Whether a gateway hears its controller, as its metrics say."""

from typing import TYPE_CHECKING

from services.telemetry.catalog import CONTROLLER_CONNECTED

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


async def test_a_controller_that_goes_and_comes_shows(echo_fleet: "Fleet") -> None:
    await echo_fleet.until_metric(1, CONTROLLER_CONNECTED.name)
    await echo_fleet.controller.stop()
    await echo_fleet.until_metric(0, CONTROLLER_CONNECTED.name)
    await echo_fleet.controller.start()
    await echo_fleet.until_metric(1, CONTROLLER_CONNECTED.name)
