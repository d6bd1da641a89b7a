"""The build loop: what the nodes of the fleet lack, against what is being built.

Level-triggered: each sync lists the launcher's tasks, then reads the whole store, decides with
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
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from services.contracts.builds.build_plan import TaskStart
from services.contracts.builds.held_lease import HeldLease
from services.contracts.errors import SmeltError
from services.contracts.process.host_boot import HostBoot, host_boot
from services.contracts.registry.registry import Registry
from services.contracts.text.moments import timestamp, utc_now
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_election import BuildElection
from services.controller.build.build_policy import Decision, decide, task_start
from services.controller.build.build_reader import ViewReader, attached_versions
from services.controller.build.build_turns import builds_shown
from services.controller.build.build_view import FleetView
from services.controller.build.key_status import RetryPolicy
from services.controller.build.retries import Retries
from services.controller.build.task_accounts import TaskAccounts
from services.controller.build.task_waits import TaskWaits
from services.controller.build.traffic_watch import TrafficWatch
from services.controller.deploy.fleet_threads import FleetThreads
from services.controller.events.event_diff import gave_way
from services.controller.events.event_recorder import EventRecorder
from services.controller.events.serving_events import serving_of
from services.controller.interfaces import (
    BuildLauncher,
    BuildTask,
    NodePool,
    NodeSource,
    TaskState,
    TaskStatus,
)
from services.controller.metrics.build_gauges import BuildGauges
from services.pb import fleet_v1_pb2 as fleet
from services.telemetry.recorder import NullRecorder, Recorder

logger = logging.getLogger(__name__)

# A controller that ends has seconds; without a release another one takes over after the lease.
_RELEASE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class BuildPace:
    """How often the loop looks.

    Attributes:
        resync_s: at most this long apart.
        poll_s: while tasks run: launchers send no notification when one ends.
        nodes_gone_after_s: how long no node of a class may be known before what is built for
            it is cancelled: nodes flap, and a source that has just begun to look knows few.
        waits_after_s: how long a task may wait for a node before that is an event.
        retry: how failures are met.
    """

    resync_s: float = 15.0
    poll_s: float = 2.0
    nodes_gone_after_s: float = 30.0
    waits_after_s: float = 300.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)


class BuildLoop:
    """Builds and proves what the models that are wanted or serve lack on each class of nodes.

    Attributes:
        latest: the fleet as the last sync saw it, and the store that it read; None before, and
            while another controller builds.
        last_sync_s: when the last sync ended, with or without a fault, in seconds of the clock;
            infinity while another controller builds.
    """

    def __init__(
        self,
        registry: Registry,
        nodes: NodeSource,
        launcher: BuildLauncher,
        state: FleetState,
        *,
        on_store_changed: Callable[[], None] = lambda: None,
        recorder: Recorder | None = None,
        pace: BuildPace | None = None,
        election: BuildElection | None = None,
        threads: FleetThreads | None = None,
        boot: HostBoot | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is read or launched yet.

        Args:
            registry: on the fleet's store.
            nodes: what there is; a source that is away for a while gives its last answer
                (CombinedNodes), as nothing is built and nothing cancelled without it.
            launcher: runs the builds.
            state: read for events; shows what is built and what waits.
            on_store_changed: called in the event loop when engines or proofs are new; must not
                block.
            recorder: records BUILD_LOOP_METRICS.
            pace: how often to look, and when what failed is tried again.
            election: which controller of the store builds; None takes the store's lease.
            threads: that ask for nodes, within a bound.
            boot: of this host; None takes the kernel's.
            clock: monotonic seconds.
        """
        self._pace = pace or BuildPace()
        self._registry = registry
        self._launcher = launcher
        self._state = state
        # Of no version it is known yet that none is to come.
        state.set_builds([], frozenset())
        self._nodes = nodes
        self._threads = threads or FleetThreads()
        self._election = election or BuildElection(registry)
        self._reader = ViewReader(registry, self._pace.retry, launcher.compiler)
        self._clock = clock
        self._boot = boot or host_boot()
        self._refusals = Retries(clock, first_s=2.0, most_s=300.0)
        self._forget()
        self._on_store_changed = on_store_changed
        self._gauges = BuildGauges(recorder or NullRecorder())
        self._enqueued = asyncio.Event()
        self._sync_lock = asyncio.Lock()
        self._engine_marks: frozenset[tuple[str, str]] | None = None
        self.latest: tuple[FleetView, Registry] | None = None
        self.last_sync_s = math.inf

    def _forget(self) -> None:
        """Take tasks and events from the store, and nothing from an earlier lease."""
        pace = self._pace
        clock = self._clock
        self._accounts = TaskAccounts(
            self._registry,
            self._launcher,
            nodes_gone_after_s=pace.nodes_gone_after_s,
            boot=self._boot,
            clock=clock,
        )
        self._waits = TaskWaits(pace.waits_after_s, clock)
        self._events = EventRecorder(self._registry)
        self._traffic = TrafficWatch(self._registry, clock)

    def enqueue(self) -> None:
        """Enqueue a sync; call it in the event loop."""
        self._enqueued.set()

    async def run(self) -> None:
        """Build until cancelled, whenever this controller is the one that does.

        What runs then goes on where its launcher lets it.
        """
        while True:
            lease = await self._election.won(self._state.set_standby)
            lease.start()
            self.last_sync_s = self._clock()
            self._state.set_standby(None)
            self._gauges.show_lease(is_held=True)
            try:
                await self._run_under(lease)
            finally:
                # What is shown are this controller's own builds alone.
                self.latest = None
                self._state.set_builds([])
                self._gauges.show(Decision(), (), ())
                self._gauges.show_lease(is_held=False)
                self._forget()
                # Last: from here on another controller may build.
                await asyncio.to_thread(lease.release, _RELEASE_S)
                self.last_sync_s = math.inf

    async def _run_under(self, lease: HeldLease) -> None:
        watching = asyncio.create_task(self._watch_serving())
        try:
            while not lease.lost_to():
                # Before the sync: what is enqueued while it runs has another one follow.
                self._enqueued.clear()
                pause_s = await self._try_sync()
                # Not wait_for: on Python 3.11 it can swallow a cancel that meets the event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._enqueued.wait()
        finally:
            watching.cancel()

    async def sync(self) -> float:
        """Compare once; returns the seconds after which to look again.

        Raises:
            SmeltError: nodes, store or launcher failed; the next sync goes on from there.
        """
        async with self._sync_lock:
            # Ray may hang: a sync that waited for it would be the last.
            pools = await self._threads.ask(self._nodes.pools)
            snapshot = self._state.snapshot()
            decision, view = await asyncio.to_thread(self._sync_blocking, snapshot, pools)
        now = timestamp()
        shown = builds_shown(view.running, decision.queued, snapshot.builds, now)
        planned = frozenset((each.name, each.version) for each in view.versions)
        self._state.set_builds(shown, planned)
        marks = view.marks
        if self._engine_marks not in (None, marks):
            self._on_store_changed()
        self._engine_marks = marks
        return self._pause_s(decision, view)

    async def _try_sync(self) -> float:
        try:
            return await self.sync()
        except SmeltError as error:
            logger.warning("build sync failed; retrying at the next one: %s", error)
        except Exception:
            # Whatever it is, Ray's errors included: a loop that ended would do so in silence.
            logger.exception("build sync failed; retrying at the next one")
        finally:
            if not self._threads.is_exhausted:  # else it looked at nothing
                self.last_sync_s = self._clock()
        return self._pace.resync_s

    def _sync_blocking(
        self, snapshot: fleet.FleetSnapshot, pools: Sequence[NodePool]
    ) -> tuple[Decision, FleetView]:
        attached = attached_versions(snapshot)
        # Before the store: what a task that has ended wrote is then read for certain.
        statuses = self._launcher.statuses()
        view = self._reader.read(pools, _not_ended(statuses), attached)
        if self._accounts.settle(statuses, self._reader.tasks(statuses), view):
            statuses = self._launcher.statuses()
            view = self._reader.read(pools, _not_ended(statuses), attached)
        served = frozenset((e.model, e.version, e.generation) for e in serving_of(snapshot))
        view = replace(view, served=served, refused=self._refusals.pauses())
        decision = decide(view, utc_now(), self._pace.retry)
        self._refusals.keep(task.name for task in (*decision.tasks, *decision.queued))
        ended = [gave_way(start) for start in decision.overtaken if self._end(start)]
        launched = [start for task in decision.tasks if (start := self._launch(task, view))]
        waiting = self._waits.observe(view.running, statuses)
        seen = replace(view, waiting=self._waits.long)
        view = replace(seen, running=[*view.running, *launched])
        self.latest = view, self._reader.moment
        self._gauges.show(decision, view.running, waiting)
        # Last: an event that cannot be recorded must keep nothing from being built. What was seen
        # comes before what was launched for it: cause, then effect.
        self._record(lambda: self._events.observe(seen))
        if launched:
            self._record(lambda: self._events.observe(view))
        others = (*decision.unplanned, *decision.quarantined, *ended)
        self._record(lambda: self._events.observe_once(others))
        self._record(lambda: self._events.observe_replicas(snapshot))
        newest = list(filter(view.is_newest, view.versions))
        self._record(lambda: self._events.observe_once(self._traffic.look(newest)))
        return decision, view

    def _record(self, observe: Callable[[], None]) -> None:
        try:
            observe()
        except SmeltError as error:
            logger.warning("events are recorded at the next sync: %s", error)
        except Exception:
            logger.exception("events are not recorded; the next sync tries again")

    def _end(self, start: TaskStart) -> bool:
        """End a task, so that the next sync launches what waits for its place; whether it did."""
        try:
            self._launcher.forget(start.name)
        except SmeltError as error:
            logger.warning("task %s is not preempted and still runs: %s", start.name, error)
            return False
        logger.info("task %s is preempted: another model has no engine yet", start.name)
        return True

    def _launch(self, task: BuildTask, view: FleetView) -> TaskStart | None:
        start = task_start(task, view, timestamp())
        try:
            if self._accounts.is_settled_after_restart(task.name, view):
                return None  # the next sync sees the record, and what follows from it
            self._registry.start_task(start)
            self._launcher.launch(task)
        except SmeltError as error:
            # One class of nodes that takes no task must not keep the others from theirs.
            self._refusals.note(task.name, f"task {task.name} cannot be launched: {error}")
            return None
        logger.info(
            "task %s launched for %s version %d on %s: %s",
            task.name,
            task.model,
            task.version,
            task.node_class.generation,
            task.reason,
        )
        return start

    def _pause_s(self, decision: Decision, view: FleetView) -> float:
        pauses_s = [self._pace.resync_s]
        if view.running:
            pauses_s.append(self._pace.poll_s)
        if decision.next_due_at is not None:
            pauses_s.append(max(_seconds_until(decision.next_due_at), 0.0))
        return min(pauses_s)

    async def _watch_serving(self) -> None:
        """Record at once what replicas serve with, and lost ones; ends only when cancelled."""
        while True:
            try:
                async for snapshot in self._state.watch():
                    record = partial(self._events.observe_replicas, snapshot)
                    await asyncio.to_thread(self._record, record)
            except Exception:
                # Each sync records it too: nothing is lost meanwhile.
                logger.exception("the watch of the fleet failed; starting it again")
                await asyncio.sleep(self._pace.resync_s)


def _not_ended(statuses: dict[str, TaskStatus]) -> list[str]:
    return [name for name, status in statuses.items() if status.state is not TaskState.ENDED]


def _seconds_until(moment: datetime) -> float:
    return (moment - utc_now()).total_seconds()
