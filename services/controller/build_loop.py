"""The build loop: what the nodes of the fleet lack, against what is being built.

Level-triggered: each pass asks the launcher, then reads the whole store, decides with
`build_policy.decide` and launches what is due. All state is in the store and with the
launcher, so a controller that is killed anywhere goes on after it is started again:

- what a task is to do is kept before it is launched, under the name it is launched by;
- launching twice is harmless, as the same view gives the same names;
- what an ended task did stands in the records of its keys. One that left none was killed in
  the middle, and the key it was at gets a record of that, before the task is forgotten.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from services.contracts.build_key import BuildKey
from services.contracts.build_plan import TaskEnd, TaskStart, timestamp, utc_now
from services.contracts.errors import NotReadyError, SmeltError
from services.contracts.manifest import BuildOutcome, BuildRecord
from services.contracts.registry import Registry
from services.controller.build_events import EventTrail
from services.controller.build_gauges import BuildGauges
from services.controller.build_policy import Decision, decide, task_start, untouched_key
from services.controller.build_reader import ViewReader
from services.controller.build_view import FleetView, plan_for_pool
from services.controller.event_news import serving_of
from services.controller.fleet_state import FleetState
from services.controller.key_status import RetryPolicy
from services.controller.seams import (
    BuildLauncher,
    BuildTask,
    NodePool,
    NodeSource,
    TaskState,
    TaskStatus,
)
from services.pb import fleet_v1_pb2 as fleet
from services.telemetry.recorder import NullRecorder, Recorder

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BuildPace:
    """How often the loop looks.

    Attributes:
        resync_s: without being told.
        poll_s: while tasks run: launchers tell nobody when one ends.
        retry: how failures are met.
    """

    resync_s: float = 15.0
    poll_s: float = 2.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)


class BuildLoop:
    """Builds and proves what the newest version of each model lacks on each class of nodes."""

    def __init__(
        self,
        registry: Registry,
        sources: Sequence[NodeSource],
        launcher: BuildLauncher,
        state: FleetState,
        *,
        on_store_changed: Callable[[], None] = lambda: None,
        recorder: Recorder | None = None,
        pace: BuildPace | None = None,
    ) -> None:
        """Nothing is read or launched yet.

        Args:
            registry: on the fleet's store.
            sources: of nodes; those that cannot be read keep what they said last.
            launcher: runs the builds.
            state: only read, for the event trail.
            on_store_changed: called in the event loop when engines or proofs are new; must not
                block.
            recorder: records BUILD_LOOP_METRICS.
            pace: how often to look, and how failures are met.
        """
        self._pace = pace or BuildPace()
        self._registry, self._launcher, self._state = registry, launcher, state
        self._pools = _KnownPools(sources)
        self._reader = ViewReader(registry, self._pace.retry, launcher.compiler)
        self._trail = EventTrail(registry)
        self._on_store_changed = on_store_changed
        self._gauges = BuildGauges(recorder or NullRecorder())
        self._kicked = asyncio.Event()
        self._pass_lock = asyncio.Lock()
        self._engine_marks: frozenset[tuple[str, str]] | None = None

    def kick(self) -> None:
        """Look now; call it in the event loop."""
        self._kicked.set()

    async def run(self) -> None:
        """Build until cancelled; what runs then goes on where its launcher lets it."""
        watching = asyncio.create_task(self._watch_serving())
        try:
            while True:
                self._kicked.clear()
                pause_s = await self._try_pass()
                # Not wait_for: on Python 3.11 it can swallow a cancel that meets the event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._kicked.wait()
        finally:
            watching.cancel()

    async def pass_now(self) -> float:
        """One pass; returns the seconds after which to look again.

        Raises:
            SmeltError: store or launcher failed; the next pass goes on from there.
        """
        async with self._pass_lock:
            snapshot = self._state.snapshot()
            decision, view = await asyncio.to_thread(self._pass, snapshot)
        marks = frozenset((e.digest, e.proof.created_at) for e in view.engines.values())
        if self._engine_marks not in (None, marks):
            self._on_store_changed()
        self._engine_marks = marks
        return self._pause_s(decision, view)

    async def _try_pass(self) -> float:
        try:
            return await self.pass_now()
        except SmeltError as error:
            logger.warning("build pass failed, the next one goes on: %s", error)
        except Exception:
            # Whatever it is, Ray's errors included: a loop that ended would do so in silence.
            logger.exception("build pass failed; the next one goes on")
        return self._pace.resync_s

    def _pass(self, snapshot: fleet.FleetSnapshot) -> tuple[Decision, FleetView]:
        pools = self._pools.read()
        # Before the store: what a task that has ended wrote is then read for certain.
        statuses = self._launcher.statuses()
        view = self._reader.read(pools, _not_ended(statuses))
        if self._settle(statuses, view):
            view = self._reader.read(pools, _not_ended(self._launcher.statuses()))
        # Told before what follows from it is launched: the trail reads as cause and effect.
        self._trail.observe(view)
        decision = decide(view, utc_now(), self._pace.retry)
        starts = [self._launch(task, view) for task in decision.tasks]
        if launched := [start for start in starts if start is not None]:
            view = replace(view, running=[*view.running, *launched])
            self._trail.observe(view)
        self._trail.observe_quarantine(decision.quarantined)
        self._trail.observe_serving(serving_of(snapshot))
        self._gauges.show(decision, view.running)
        return decision, view

    def _settle(self, statuses: dict[str, TaskStatus], view: FleetView) -> bool:
        """Account for tasks that ended or can never run; whether there were any."""
        is_any = False
        for name, start in self._reader.tasks(statuses).items():
            status = statuses[name]
            if status.state is TaskState.ENDED:
                self._account(start, status, view)
            elif start.is_anywhere or _has_nodes(start, view):
                continue
            else:
                logger.info("task %s is given up: its nodes are gone", name)
            self._launcher.forget(name)
            is_any = True
        return is_any

    def _account(self, start: TaskStart, status: TaskStatus, view: FleetView) -> None:
        """See to it that an ended task has left something in the store."""
        now = timestamp(utc_now())
        if status.is_lost and self._is_forgiven(start, status, now):
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
        if digest is None or key is None or _is_charged(start, view):
            return
        record = BuildRecord(
            key=key,
            outcome=BuildOutcome.FAILED,
            stage="task",
            reason=f"{_charge_words(start)} {status.detail or 'nothing was said'}",
            started_at=now,
        )
        self._registry.record_build(record)

    def _is_forgiven(self, start: TaskStart, status: TaskStatus, now: str) -> bool:
        """Whether the loss of its node is no fault of what a task was at.

        Planning, which comes before any build, takes no node down. A build may, so that only
        the first node that an attempt loses is forgiven: the second is charged as a failure.
        """
        if start.key_digests:
            end = TaskEnd(name=start.name, detail=status.detail, run=status.run, created_at=now)
            # One that stands there stays: it may be this very loss, told before a restart.
            self._registry.end_task(end)
            kept = self._registry.task_end(start.name)
            if kept is not None and kept.run != status.run:
                return False
        logger.warning("task %s is launched again: %s", start.name, status.detail)
        return True

    def _launch(self, task: BuildTask, view: FleetView) -> TaskStart | None:
        start = task_start(task, view, timestamp(utc_now()))
        try:
            self._registry.start_task(start)
            self._launcher.launch(task)
        except SmeltError as error:
            # One class of nodes that takes no task must not keep the others from theirs.
            logger.error("task %s cannot be launched, the next pass tries again: %s",
                         task.name, error)  # fmt: skip
            return None
        logger.info(
            "task %s launched for %s version %d on %s: %s",
            task.name, task.model, task.version, task.node_class.generation, task.reason,
        )  # fmt: skip
        return start

    def _pause_s(self, decision: Decision, view: FleetView) -> float:
        pauses_s = [self._pace.resync_s]
        if view.running:
            pauses_s.append(self._pace.poll_s)
        if decision.next_due_at is not None:
            pauses_s.append(max(_seconds_until(decision.next_due_at), 0.0))
        return min(pauses_s)

    async def _watch_serving(self) -> None:
        """Tell at once when replicas serve with something else."""
        async for snapshot in self._state.watch():
            try:
                await asyncio.to_thread(self._trail.observe_serving, serving_of(snapshot))
            except SmeltError as error:
                logger.warning("events are told at the next change: %s", error)


class _KnownPools:
    """What the sources of nodes say, or said last."""

    def __init__(self, sources: Sequence[NodeSource]) -> None:
        self._sources = sources
        self._last: list[list[NodePool]] = [[] for _ in sources]

    def read(self) -> list[NodePool]:
        """All pools of all sources.

        Raises:
            NotReadyError: none could be read yet: what there is, is not known.
        """
        faults = []
        for index, source in enumerate(self._sources):
            try:
                self._last[index] = source.pools()
            except NotReadyError as error:
                logger.warning("nodes stay as they were known: %s", error)
                faults.append(error)
        pools = [pool for known in self._last for pool in known]
        if faults and not pools:
            raise faults[0]
        return pools


def _not_ended(statuses: dict[str, TaskStatus]) -> list[str]:
    return [name for name, status in statuses.items() if status.state is not TaskState.ENDED]


def _has_nodes(start: TaskStart, view: FleetView) -> bool:
    return any(pool.num_nodes and pool.node_class == start.node_class for pool in view.pools)


def _is_planned(start: TaskStart, view: FleetView) -> bool:
    plans = view.plans.get((start.model, start.version), ())
    num_nodes = 0 if start.is_anywhere else 1
    pool = NodePool(node_class=start.node_class, source="task", num_nodes=num_nodes)
    return plan_for_pool(plans, pool, view.compiler) is not None


def _why_unplanned(start: TaskStart, status: TaskStatus, view: FleetView) -> str:
    """Why an ended task left no plan for its class of nodes."""
    if status.is_failed:
        return status.detail or "it ended without a word"
    wanted = start.node_class.model_dump()
    for plan in reversed(view.plans.get((start.model, start.version), ())):
        found = plan.node_class.model_dump()
        if found["generation"] == wanted["generation"] and plan.facts is not None:
            others = [f"{n} '{v}'" for n, v in found.items() if v != wanted[n]]
            return (
                f"the node says of itself: {', '.join(others)}; its labels say otherwise: make "
                "them by: smelt node-labels"
            )
    return "it ended well and made no plan"


def _planned_key(digest: str, view: FleetView) -> BuildKey | None:
    if digest in view.engines:
        return view.engines[digest].manifest.key
    plans = (plan for known in view.plans.values() for plan in known)
    return next((p.key for plan in plans for p in plan.planned if p.digest == digest), None)


def _is_charged(start: TaskStart, view: FleetView) -> bool:
    """Whether a controller that was killed right after has kept that record already."""
    words = _charge_words(start)
    records = (record for d in start.key_digests for record in view.records.get(d, ()))
    return any(record.reason.startswith(words) for record in records)


def _charge_words(start: TaskStart) -> str:
    return f"task {start.name} ended in the middle:"


def _seconds_until(moment: datetime) -> float:
    return (moment - utc_now()).total_seconds()
