"""Where the builds of a model version stand in a fleet's queue, and whether the fleet builds."""

from collections.abc import Iterable
from typing import Any

from services.contracts.text.words import readable_time
from services.pb import fleet_v1_pb2 as fleet


def queued_builds(
    snapshot: fleet.FleetSnapshot | None, name: str, version: int
) -> dict[str, dict[str, Any]]:
    """By generation, the build of a model version that runs or comes first, as plain data.

    `waits_for` names the running builds of other models that it waits for, `num_before` is the
    number of builds that wait before it, and `words` is all of that in one line.

    Args:
        snapshot: of the fleet; None without a fleet, which has no queue.
        name: of the model.
        version: of the model.
    """
    builds = snapshot.builds if snapshot else ()
    queued: dict[str, dict[str, Any]] = {}
    for place, build in enumerate(builds):
        is_ours = (build.model_name, build.model_version) == (name, version)
        # The queue is in order: of several builds of one generation the first comes first.
        if is_ours and build.generation not in queued:
            queued[build.generation] = _placed(build, builds[:place])
    return queued


def standby_document(snapshot: fleet.FleetSnapshot | None) -> dict[str, Any] | None:
    """Which other controller builds for the fleet's store; None where this fleet's own does.

    `reason` is what that means, in words.
    """
    if snapshot is None or not snapshot.HasField("standby"):
        return None
    found = snapshot.standby
    return {"holder": found.holder, "since": found.since or None, "reason": found.reason}


def build_document(build: fleet.FleetBuild) -> dict[str, Any]:
    """A build that runs, or that waits and has no `started_at`, as plain data."""
    return {
        "model": build.model_name,
        "version": build.model_version,
        "generation": build.generation,
        "reason": build.reason,
        "started_at": build.started_at or None,
    }


def _placed(build: fleet.FleetBuild, before: Iterable[fleet.FleetBuild]) -> dict[str, Any]:
    # What runs on other classes of nodes does not keep this one waiting.
    ahead = [] if build.started_at else [other for other in before if _excludes(other, build)]
    running = [other for other in ahead if other.started_at]
    num_before = len(ahead) - len(running)
    return {
        **build_document(build),
        "waits_for": [build_document(other) for other in running],
        "num_before": num_before,
        "words": _words(build, running, num_before),
    }


def _excludes(other: fleet.FleetBuild, build: fleet.FleetBuild) -> bool:
    """Whether both cannot run at a time; see `services.controller.build.build_policy`."""
    return other.node_class == build.node_class or (other.is_anywhere and build.is_anywhere)


def _words(build: fleet.FleetBuild, running: Iterable[fleet.FleetBuild], num_before: int) -> str:
    if build.started_at:
        return f"is being built since {readable_time(build.started_at)}: {build.reason}"
    behind = " and ".join(
        f"the build of {other.model_name} version {other.model_version} on {other.generation} "
        f"(since {readable_time(other.started_at)})"
        for other in running
    )
    return (
        f"waits to be built ({build.reason}): {num_before + 1}. in the queue, behind "
        f"{behind or 'builds that are about to begin'}"
    )
