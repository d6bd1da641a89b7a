"""Where the builds of a model version stand in a fleet's queue, and whether the fleet builds."""

from collections.abc import Iterable
from typing import Any

from services.contracts.text.words import readable_time
from services.pb import fleet_v1_pb2 as fleet


def queued_builds(
    snapshot: fleet.FleetSnapshot | None, name: str, version: int
) -> dict[str, dict[str, Any]]:
    """By generation, the build of a model version that runs or comes first, as plain data.

    `waits_for` names the running builds that it waits for, `num_before` is the number of builds
    that wait before it, `place` is that in words, and `words` is all of it in one line.

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
        "queued_at": build.queued_at or None,
    }


def _placed(build: fleet.FleetBuild, before: Iterable[fleet.FleetBuild]) -> dict[str, Any]:
    # What runs on other classes of nodes does not keep this one waiting.
    ahead = [] if build.started_at else [other for other in before if _excludes(other, build)]
    running = [other for other in ahead if other.started_at]
    num_before = len(ahead) - len(running)
    place = _place(build, num_before)
    words = f"its build ({build.reason}) {place}"
    if not build.started_at:
        words += f"; {_running_words(running)}"
    return {
        **build_document(build),
        "waits_for": [build_document(other) for other in running],
        "num_before": num_before,
        "place": place,
        "words": words,
    }


def _excludes(other: fleet.FleetBuild, build: fleet.FleetBuild) -> bool:
    """Whether both cannot run at a time; see `services.controller.build.build_policy`."""
    return other.node_class == build.node_class or (other.is_anywhere and build.is_anywhere)


def _place(build: fleet.FleetBuild, num_before: int) -> str:
    """Since when it runs; or its place among those that wait, of which none runs."""
    if build.started_at:
        return f"runs since {readable_time(build.started_at)}"
    since = f" since {readable_time(build.queued_at)}" if build.queued_at else ""
    return f"is number {num_before + 1} in the queue{since}"


def _running_words(running: Iterable[fleet.FleetBuild]) -> str:
    words = " and ".join(
        f"{other.model_name} version {other.model_version} on {other.generation} "
        f"(since {readable_time(other.started_at)})"
        for other in running
    )
    return f"running now: {words}" if words else "nothing that it waits for runs yet"
