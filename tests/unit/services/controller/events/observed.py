"""What an event recorder is shown, and what it recorded."""

from datetime import UTC, datetime
from typing import Any

from services.contracts.events import Event, EventKind
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.registry.event_log import EventRegistry
from services.controller.build.build_view import FleetView
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.controller import build_world as world

ORT, OPENVINO = world.KEYS

NOW = datetime(2027, 1, 1, tzinfo=UTC)


def view(*engines: Any, **changes: Any) -> FleetView:
    """One node, one model, one plan and these engines; with changes."""
    fields: dict[str, Any] = {
        "pools": (world.pool(),),
        "versions": (world.version(),),
        "plans": {("m", 1): (world.plan(),)},
        "engines": {engine.digest: engine for engine in engines},
    }
    return FleetView(**fields | changes)


def recorded(registry: EventRegistry) -> list[Event]:
    """All events, in order."""
    return [event for _, event in registry.last_events(100)]


def kinds(registry: EventRegistry) -> list[str]:
    """The kinds of all events, in order."""
    return [event.kind.value for event in recorded(registry)]


def serves(digest: str = "", version: int = 1) -> list[Event]:
    """A model that an engine serves, or its fallback."""
    kind = EventKind.ENGINE_SERVING if digest else EventKind.FALLBACK_SERVING
    place = {"model": "m", "version": version, "generation": world.GENERATION}
    return [Event(kind=kind, key=digest, why="w", **place)]


def replica(
    name: str, digest: str, state: Any = fleet.REPLICA_STATE_READY, version: int = 1
) -> fleet.ReplicaReport:
    """What a replica of that model reports."""
    facts = DeviceFacts(generation=world.GENERATION, name="x", memory_gib=1)
    return fleet.ReplicaReport(
        replica_id=name,
        model_name="m",
        model_version=version,
        state=state,
        device_facts_json=facts.canonical_json(),
        engine_digest=digest,
        process_id=7,
    )
