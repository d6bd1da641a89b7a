"""A gateway whose background work ended unexpectedly says so instead of growing stale."""

import asyncio
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


async def test_serving_ends_when_it_is_told_to(fleet_of: "Fleet") -> None:
    stop = asyncio.Event()
    serving = asyncio.ensure_future(fleet_of.gateway.serve_until(stop))
    await asyncio.sleep(0)
    assert not serving.done()
    stop.set()
    await asyncio.wait_for(serving, 30)


async def test_a_fault_in_background_work_ends_serving(
    fleet_of: "Fleet", monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("broken")

    serving = asyncio.ensure_future(fleet_of.gateway.serve_until(asyncio.Event()))
    monkeypatch.setattr("services.gateway.observability.fleet_observer.FleetObserver.publish", fail)
    fleet_of.controller.publish()
    with pytest.raises(ValueError, match="broken"):
        await asyncio.wait_for(serving, 30)
