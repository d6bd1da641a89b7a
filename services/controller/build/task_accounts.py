"""Accounts for build tasks that ended, and cancels those without nodes or without a model.

What a task did stands in the records of its keys. One that left none was killed in the middle,
and the key it was at gets a record of that, before the task is forgotten.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime

from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_plan import TaskEnd, TaskStart
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.errors import SmeltError
from services.contracts.process.host_boot import HostBoot
from services.contracts.registry.registry import Registry
from services.contracts.text.moments import timestamp
from services.controller.build.build_policy import untouched_key
from services.controller.build.build_view import FleetView, plan_for_pool
from services.controller.interfaces import (
    BuildLauncher,
    NodePool,
    TaskState,
    TaskStatus,
    deadline_s,
)

logger = logging.getLogger(__name__)


class TaskAccounts:
    """Has an ended task leave something in the store before its launcher forgets it."""

    def __init__(
        self,
        registry: Registry,
        launcher: BuildLauncher,
        *,
        nodes_gone_after_s: float,
        boot: HostBoot | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Neither store nor launcher is called yet.

        Args:
            registry: gets the records.
            launcher: of the tasks.
            nodes_gone_after_s: how long no node of a task's class may be known.
            boot: of this host; None where it is not known.
            clock: monotonic seconds.
        """
        self._registry = registry
        self._launcher = launcher
        self._nodes_gone_after_s = nodes_gone_after_s
        self._boot = boot
        self._clock = clock
        # When tasks were first seen to have no nodes, or to have ended without a start.
        self._since_s: dict[str, float] = {}
        # When tasks were first seen in the state that they are in.
        self._in_state_s: dict[tuple[str, TaskState], float] = {}

    def settle(
        self,
        statuses: Mapping[str, TaskStatus],
        starts: Mapping[str, TaskStart],
        view: FleetView,
    ) -> bool:
        """Record the outcome of tasks that ended, or that can never run, in the store.

        Args:
            statuses: of the launcher's tasks, by name.
            starts: of the tasks to account for, by name; each has a status.
            view: of fleet and store at one moment.

        Returns:
            Whether there were any.
        """
        now_s = self._clock()
        states = [(name, each.state) for name, each in statuses.items()]
        self._in_state_s = {each: self._in_state_s.get(each, now_s) for each in states}
        ended = {name for name, each in statuses.items() if each.state is TaskState.ENDED}
        strays = ended - starts.keys()
        self._since_s = {n: at for n, at in self._since_s.items() if n in starts or n in strays}
        for name in filter(self._is_late, strays):
            # Nothing in the store accounts for it; one that cannot be read may do so later.
            with suppress(SmeltError):
                if self._registry.task_start(name) is None:
                    self._launcher.forget(name)
        over = [self._try_settle(start, statuses[name], view) for name, start in starts.items()]
        return any(over)

    def is_settled_after_restart(self, name: str, view: FleetView) -> bool:
        """Whether a task that is to be launched took this host down again, and that is recorded.

        Where launcher and host are one, a task that does leaves no status, only its start. The
        first restart in an attempt is no failure of it, as of any node that is lost.

        Args:
            name: of a task that the launcher does not know.
            view: of fleet and store at one moment.

        Raises:
            StoreError: the store failed.
        """
        start = self._registry.task_start(name) if self._boot else None
        if start is None or self._boot is None:
            return False
        if datetime.fromisoformat(start.created_at) >= self._boot.began_at:
            return False
        if not start.key_digests and _is_planned(start, view):
            return False  # it times what is proven and serves, and has no record
        ended = TaskStatus(
            state=TaskState.ENDED,
            is_failed=True,
            detail="its host restarted",
            run=self._boot.boot_id,
        )
        if self._is_disregarded(start, ended, timestamp()):
            return False
        self._account(start, ended, view)
        return True

    def _try_settle(self, start: TaskStart, status: TaskStatus, view: FleetView) -> bool:
        try:
            if not self._is_over(start, self._in_time(start, status), view):
                return False
            self._launcher.forget(start.name)
        except SmeltError as error:
            # One that cannot be accounted for must not keep the others from their next step.
            logger.error("task %s is accounted for at the next sync: %s", start.name, error)
            return False
        return True

    def _in_time(self, start: TaskStart, status: TaskStatus) -> TaskStatus:
        """The status; a task that takes too long, where nothing else ends it, counts as ended."""
        took_s = self._clock() - self._in_state_s[start.name, status.state]
        most_s = deadline_s(start)
        if self._launcher.has_deadlines or status.state is TaskState.ENDED or took_s < most_s:
            return status
        # One that hangs, or has no node that answers.
        return TaskStatus(
            state=TaskState.ENDED,
            is_failed=True,
            is_unstarted=status.state is TaskState.WAITING,
            detail=f"not done within {most_s / 3600:g} hours",
        )

    def _is_over(self, start: TaskStart, status: TaskStatus, view: FleetView) -> bool:
        if status.state is TaskState.ENDED:
            self._account(start, status, view)
            return True
        if _is_model_removed(start, view):
            logger.warning("task %s is cancelled: model %s was removed", start.name, start.model)
            return True
        if start.is_anywhere or _has_nodes(start, view):
            self._since_s.pop(start.name, None)
            return False
        if not self._is_late(start.name):
            return False
        logger.warning("task %s is cancelled: its nodes are gone", start.name)
        return True

    def _is_late(self, name: str) -> bool:
        """Whether what was missing of a task has been so for as long as nodes may be gone."""
        since_s = self._since_s.setdefault(name, self._clock())
        return self._clock() - since_s >= self._nodes_gone_after_s

    def _account(self, start: TaskStart, status: TaskStatus, view: FleetView) -> None:
        """See to it that an ended task has left something in the store."""
        now = timestamp()
        if status.is_unstarted:
            logger.warning("task %s never ran: %s", start.name, status.detail)
            return
        if status.is_lost and self._is_disregarded(start, status, now):
            return
        if not start.key_digests:
            if not _is_planned(start, view):
                detail = _why_unplanned(start, status, view)
                end = TaskEnd(name=start.name, detail=detail, created_at=now)
                self._registry.end_task(end)
            return
        if not start.is_anywhere and not _has_nodes(start, view):
            return  # its nodes are gone: no fault of a key
        digest = untouched_key(start, view.records, view.engines)
        key = _planned_key(digest, view) if digest else None
        if digest is None or key is None or _is_recorded(start, view):
            return
        record = BuildRecord(
            key=key,
            outcome=BuildOutcome.FAILED,
            stage="task",
            reason=f"{_reason_words(start)} {status.detail or 'without any output'}",
            started_at=now,
        )
        self._registry.record_build(record)

    def _is_disregarded(self, start: TaskStart, status: TaskStatus, now: str) -> bool:
        """Whether the loss of its node is no fault of what a task was at.

        A build may take its node down, and what planning reads may have it evicted: only the
        first node that an attempt loses is no failure, the second one is.
        """
        # Not under its own name, which ends an attempt at a plan.
        name = f"{start.name}-lost"
        loss = TaskEnd(name=name, detail=status.detail, run=status.run, created_at=now)
        # One that stands there stays: it may be this very loss, recorded before a restart.
        self._registry.end_task(loss)
        kept = self._registry.task_end(name)
        if kept is not None and kept.run != status.run:
            return False
        logger.warning("task %s is launched again: %s", start.name, status.detail)
        return True


def _has_nodes(start: TaskStart, view: FleetView) -> bool:
    """Whether a node of the task's class is known, be it cordoned or not ready for a moment."""
    return any(
        (pool.num_nodes or pool.num_known) and pool.node_class == start.node_class
        for pool in view.pools
    )


def _is_model_removed(start: TaskStart, view: FleetView) -> bool:
    # Not only absent: a model that cannot be read for a moment is that too.
    is_there = any(version.name == start.model for version in view.versions)
    return not is_there and start.model in view.removals


def _is_planned(start: TaskStart, view: FleetView) -> bool:
    plans = view.plans.get((start.model, start.version), ())
    num_nodes = 0 if start.is_anywhere else 1
    pool = NodePool(node_class=start.node_class, source="task", num_nodes=num_nodes)
    return plan_for_pool(plans, pool, view.compiler) is not None


def _why_unplanned(start: TaskStart, status: TaskStatus, view: FleetView) -> str:
    """Why an ended task left no plan for its class of nodes."""
    if status.is_failed:
        return status.detail or "it failed without any output"
    wanted = start.node_class.model_dump()
    for plan in reversed(view.plans.get((start.model, start.version), ())):
        found = plan.node_class.model_dump()
        if found["generation"] != wanted["generation"] or plan.facts is None:
            continue
        # What the labels leave out is unknown, and no contradiction.
        others = [f"{n} '{v}'" for n, v in found.items() if v and wanted[n] and v != wanted[n]]
        if others:
            return (
                f"the node detects: {', '.join(others)}; its labels differ: set them "
                "by: smelt node-labels"
            )
    return "it exited with code 0 and wrote no plan"


def _planned_key(digest: str, view: FleetView) -> BuildKey | None:
    if digest in view.engines:
        return view.engines[digest].manifest.key
    plans = (plan for known in view.plans.values() for plan in known)
    return next((p.key for plan in plans for p in plan.planned if p.digest == digest), None)


def _is_recorded(start: TaskStart, view: FleetView) -> bool:
    """Whether a controller that was killed right after has kept that record already."""
    words = _reason_words(start)
    records = (record for d in start.key_digests for record in view.records.get(d, ()))
    return any(record.reason.startswith(words) for record in records)


def _reason_words(start: TaskStart) -> str:
    return f"task {start.name} ended in the middle:"
