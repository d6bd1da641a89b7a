"""The builds that a fleet shows: those that run, and those that wait for their turn."""

from collections.abc import Sequence

from services.contracts.builds.build_plan import TaskSpec, TaskStart
from services.controller.interfaces import BuildTask
from services.pb import fleet_v1_pb2 as fleet


def builds_shown(
    running: Sequence[TaskStart],
    queued: Sequence[BuildTask],
    before: Sequence[fleet.FleetBuild],
    now: str,
) -> list[fleet.FleetBuild]:
    """Running ones first, oldest first; then the others in the order of their turns.

    Args:
        running: as they were launched.
        queued: the first to be launched first.
        before: what was shown last, with since when what still waits has waited.
        now: RFC 3339.
    """
    oldest_first = sorted(running, key=lambda start: (start.created_at, start.name))
    waiting = [_shown(task) for task in queued]
    since = {(b.model_name, b.model_version, b.node_class): b.queued_at for b in before}
    for b in waiting:
        b.queued_at = since.get((b.model_name, b.model_version, b.node_class)) or now
    return [*(_shown(start, start.created_at) for start in oldest_first), *waiting]


def _shown(task: TaskSpec, started_at: str = "") -> fleet.FleetBuild:
    return fleet.FleetBuild(
        model_name=task.model,
        model_version=task.version,
        generation=task.node_class.generation,
        node_class=task.node_class.digest(),
        is_anywhere=task.is_anywhere,
        reason=task.reason,
        started_at=started_at,
    )
