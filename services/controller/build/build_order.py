"""In which order build tasks get their turns, and which of them have to wait. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from services.contracts.builds.build_plan import TaskSpec, TaskStart
from services.contracts.events import Event
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import ModelVersion
from services.controller.build.build_view import FleetView
from services.controller.interfaces import BuildTask, NodePool


@dataclass(frozen=True, kw_only=True)
class BuildCandidate:
    """What one model version lacks on one pool.

    Attributes:
        task: what to launch; None when nothing is due.
        first: the part of it that makes the first engine; None where one is proven.
        quarantined: events of keys, or of the plan, that are tried no more.
        is_urgent: replicas there have no proven engine.
    """

    pool: NodePool
    version: ModelVersion
    task: BuildTask | None = None
    first: BuildTask | None = None
    later: tuple[datetime, ...] = ()
    quarantined: tuple[Event, ...] = ()
    is_urgent: bool = True


@dataclass
class _Reservations:
    """What running tasks and those chosen already take."""

    classes: Counter[str] = field(default_factory=Counter)
    subjects: set[tuple[str, int, str]] = field(default_factory=set)
    is_any_anywhere: bool = False

    def add(self, task: TaskSpec) -> None:
        """Take a task's class of nodes and its subject."""
        self.classes[task.node_class.digest()] += 1
        self.subjects.add((task.model, task.version, task.node_class.generation))
        self.is_any_anywhere |= task.is_anywhere

    def holds(self, task: BuildTask, num_builds: int) -> bool:
        """Whether a task has to wait for another one; its nodes take so many at a time."""
        subject = (task.model, task.version, task.node_class.generation)
        return (
            self.classes[task.node_class.digest()] >= num_builds
            or subject in self.subjects
            # On nodes that serve something else: one at a time is load enough.
            or (task.is_anywhere and self.is_any_anywhere)
        )


def turns(
    candidates: Sequence[BuildCandidate], view: FleetView
) -> tuple[tuple[BuildTask, ...], tuple[BuildTask, ...]]:
    """The tasks that need not wait, and the others, in the order of their turns."""
    reservations = _Reservations()
    for start in view.running:
        reservations.add(start)
    under_way = {_place(start) for start in view.running}
    chosen: list[BuildTask] = []
    queued: list[BuildTask] = []
    num_lacking = Counter(p.pool.node_class for p in candidates if p.first)
    for candidate in sorted(candidates, key=partial(_turn, view)):
        is_shared = num_lacking[candidate.pool.node_class] > 1
        task = candidate.first if candidate.first and is_shared else candidate.task
        # Of a node that may be gone by now: its Job would wait for nothing.
        if task is None or candidate.pool.is_stale:
            continue
        # One that pauses leaves its place to others.
        is_paused = view.refused.get(task.name, False)
        if not is_paused and not reservations.holds(task, candidate.pool.num_builds):
            reservations.add(task)
            chosen.append(task)
        elif _place(task) not in under_way:
            queued.append(task)
    return tuple(chosen), tuple(queued)


def overtaken(
    candidates: Sequence[BuildCandidate], queued: Sequence[BuildTask], running: Sequence[TaskStart]
) -> tuple[TaskStart, ...]:
    """Running tasks that are preempted by the first build of another model version.

    They build further engines of versions that have a proven one, and are launched again later.
    Only a version for which nothing was ever built takes a place: each does so once at most.

    Args:
        candidates: what each version lacks on each pool.
        queued: tasks that wait.
        running: tasks that do not.
    """
    proven = {
        (c.version.name, c.version.version, c.pool.node_class)
        for c in candidates
        if not c.is_urgent
    }
    further = [start for start in running if _place(start) in proven]
    ended: list[TaskStart] = []
    for task in queued:
        is_new = not task.key_digests and task.attempt == 1 and not task.is_anywhere
        takes = [
            start
            for start in further
            if is_new and start.node_class == task.node_class and start not in ended
        ]
        ended += takes[-1:]
    return tuple(ended)


def _turn(view: FleetView, candidate: BuildCandidate) -> tuple[bool, bool, bool, bool, str]:
    """What sorts those first that are to be built first."""
    version = candidate.version
    served = version.name, version.version, candidate.pool.node_class.generation
    return (
        not candidate.pool.num_nodes,
        served in view.served or not candidate.is_urgent,
        not candidate.is_urgent,
        not view.is_newest(version),
        version.created_at,
    )


def _place(task: TaskSpec) -> tuple[str, int, NodeClass]:
    """What a task is for: of each one at a time is under way, and does all that is due."""
    return task.model, task.version, task.node_class
