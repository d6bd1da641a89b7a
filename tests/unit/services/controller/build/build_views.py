"""What the build policy sees, and the tasks that it wants; for its tests."""

from datetime import UTC, datetime, timedelta
from typing import Any

from services.contracts.builds.build_plan import RebuildRequest
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import PublishedEngine
from services.controller.build.build_policy import decide
from services.controller.build.build_view import FleetView
from services.controller.build.key_status import RetryPolicy
from services.controller.interfaces import BuildTask
from tests.unit.services.controller import build_world as world

POLICY = RetryPolicy(max_attempts=3, first_delay_s=10.0)
START = datetime(2026, 1, 1, tzinfo=UTC)


def engines(*known: PublishedEngine) -> dict[str, PublishedEngine]:
    """By digest."""
    return {engine.digest: engine for engine in known}


def view(**changes: Any) -> FleetView:
    """One node, one model, one plan, nothing built; with changes."""
    fields: dict[str, Any] = {
        "pools": (world.pool(),),
        "versions": (world.version(),),
        "plans": {("m", 1): (world.plan(),)},
    }
    return FleetView(**fields | changes)


def tasks_of(seen: FleetView, after_s: float = 0.0) -> list[BuildTask]:
    """Tasks that the policy wants so many seconds after `START`."""
    return list(decide(seen, START + timedelta(seconds=after_s), POLICY).tasks)


OTHER_DRIVER = NodeClass(generation="cuda-sm90", device="H200", memory_gib=139, driver="580.1")

ANYWHERE = NodeClass(generation="cuda-sm120")


def request(**changes: Any) -> RebuildRequest:
    """A rebuild of the model; with changes."""
    fields: dict[str, Any] = {"model": "m", "version": 1, "who": "ann", "created_at": world.AT}
    return RebuildRequest(**fields | changes)
