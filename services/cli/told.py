"""What a fleet tells `smelt why`: its replicas, its queue of builds, the troubles in its trail."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from services.contracts.events import EventKind
from services.contracts.hardware import generation_named
from services.contracts.manifest import ModelVersion
from services.contracts.registry import Registry
from services.contracts.words import readable_time
from services.pb import fleet_v1_pb2 as fleet

_TROUBLES = (EventKind.QUARANTINED, EventKind.BUILD_FAILED, EventKind.BUILD_WAITING)
_EVENTS_LOOKED_AT = 200


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A build of a model version on a generation: it runs, or waits behind others.

    Attributes:
        build: what is to be done; `started_at` says whether it runs.
        running: other models' builds that it waits for.
        num_before: how many wait before it.
    """

    build: fleet.FleetBuild
    running: tuple[fleet.FleetBuild, ...] = ()
    num_before: int = 0

    @property
    def words(self) -> str:
        """In one line."""
        if self.build.started_at:
            since = readable_time(self.build.started_at)
            return f"is being built since {since}: {self.build.reason}"
        behind = " and ".join(map(_build_words, self.running)) or "builds that are about to begin"
        place = f"{self.num_before + 1}. in the queue"
        return f"waits to be built ({self.build.reason}): {place}, behind {behind}"

    def document(self) -> dict[str, Any]:
        """As plain data."""
        return {
            **_build_document(self.build),
            "waits_for": [_build_document(build) for build in self.running],
            "num_before": self.num_before,
        }


def turns_of(snapshot: fleet.FleetSnapshot | None, name: str, version: int) -> dict[str, Turn]:
    """By generation, where the builds of a model version stand."""
    builds = snapshot.builds if snapshot else ()
    turns: dict[str, Turn] = {}
    for place, build in enumerate(builds):
        is_ours = (build.model_name, build.model_version) == (name, version)
        # The first is the one that runs, or comes first.
        if is_ours and build.generation not in turns:
            turns[build.generation] = _turn(build, builds[:place])
    return turns


def unplaced_of(snapshot: fleet.FleetSnapshot | None, name: str, version: int) -> str:
    """Why replicas of a model version are on no node; "" when all are."""
    for model in snapshot.models if snapshot else ():
        if (model.name, model.version) == (name, version):
            return model.unplaced
    return ""


def replicas_of(
    snapshot: fleet.FleetSnapshot | None, version: ModelVersion
) -> list[fleet.ReplicaReport] | None:
    """Attached ones that know where they are; None without a fleet."""
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
            return f"The last that was told ({event.kind}, {readable_time(event.at)}): {event.why}"
    return ""


def _turn(build: fleet.FleetBuild, before: Iterable[fleet.FleetBuild]) -> Turn:
    if build.started_at:
        return Turn(build=build)
    ahead = [other for other in before if _is_in_the_way(other, build)]
    running = tuple(other for other in ahead if other.started_at)
    return Turn(build=build, running=running, num_before=len(ahead) - len(running))


def _is_in_the_way(other: fleet.FleetBuild, build: fleet.FleetBuild) -> bool:
    """Whether both cannot run at a time; see `services.controller.build_policy`."""
    return other.node_class == build.node_class or (other.is_anywhere and build.is_anywhere)


def _build_words(build: fleet.FleetBuild) -> str:
    since = readable_time(build.started_at)
    where_to = f"{build.model_name} version {build.model_version} on {build.generation}"
    return f"the build of {where_to} (since {since})"


def _build_document(build: fleet.FleetBuild) -> dict[str, Any]:
    return {
        "model": build.model_name,
        "version": build.model_version,
        "generation": build.generation,
        "reason": build.reason,
        "started_at": build.started_at or None,
    }
