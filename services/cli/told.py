"""What a fleet tells `smelt why`: its replicas, and the troubles in its trail."""

from services.cli.control_client import fleet_on_store
from services.cli.settings import CliSettings
from services.contracts.events import EventKind
from services.contracts.hardware import generation_named
from services.contracts.manifest import ModelVersion
from services.contracts.registry import Registry
from services.pb import fleet_v1_pb2 as fleet

_TROUBLES = (EventKind.QUARANTINED, EventKind.BUILD_FAILED, EventKind.BUILD_WAITING)
_EVENTS_LOOKED_AT = 200


def replicas_of(settings: CliSettings, version: ModelVersion) -> list[fleet.ReplicaReport] | None:
    """Attached ones that know where they are; None where no fleet serves from this store."""
    snapshot = fleet_on_store(settings)
    if snapshot is None:
        return None
    return [
        report
        for report in snapshot.replicas
        if (report.model_name, report.model_version) == (version.name, version.version)
        and where(report)
    ]


def where(report: fleet.ReplicaReport) -> str:
    """The generation that a replica is on."""
    return generation_named(report.device_facts_json)


def last_trouble(registry: Registry, model: str, generation: str) -> str:
    """What the trail said last of builds that failed or wait; "" when it said nothing."""
    for _, event in reversed(registry.last_events(_EVENTS_LOOKED_AT, model)):
        if event.kind in _TROUBLES and generation in ("", event.generation):
            return f"The last that was told ({event.kind}, {event.at}): {event.why}"
    return ""
