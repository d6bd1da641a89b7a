"""Deployments that a list of before has, and that are gone by now."""

import asyncio

import pytest

from services.controller.deploy.deployment import DeploymentState
from services.controller.deploy.deployments import Deployments
from services.controller.deploy.fleet_threads import FleetThreads
from services.controller.interfaces import DeploymentKey
from tests.unit.services.controller.deploy.reconcile_world import OLD, FakeFleet

KEY = DeploymentKey("m", 1, OLD)


@pytest.mark.parametrize("is_there", [False, True])
async def test_what_is_gone_is_forgotten_and_no_failure(is_there: bool) -> None:
    fake = FakeFleet()
    fake.present = [KEY] if is_there else []
    fake.fault = "its application was deleted"
    changed = asyncio.Event()
    again = asyncio.Event()
    deployments = Deployments(
        fake,
        FleetThreads(),
        on_change=lambda _: changed.set(),
        on_success=again.set,
        clock=lambda: 0.0,
    )
    deployments.compare([KEY])
    await changed.wait()
    if is_there:
        assert deployments.state(*KEY[:2])[0] is DeploymentState.UNAVAILABLE
    else:
        assert deployments.all() == []
    # What waits for it is looked at again.
    assert again.is_set() is not is_there
