"""What to build now, and when to look again: one pure function over the fleet and its store.

Desired is every distinct pool of nodes times the newest version of each model, and where nodes
are, times each other version that replicas are attached for: it serves until the newest does,
or after a rollback. A pool without nodes gets what can be built ahead of time:
the rest needs a node of its generation.

Without a plan the first task plans and builds all that is missing; with one, tasks name their
keys. At most as many tasks as its pool takes run on a class of nodes at a time, and one for a
model on a generation, so that serving there keeps its processor time and no engine is built twice.

What nothing serves comes first, then what has no proven engine, then the oldest version. Where
several have no engine, a task makes one: each gets its first before any gets its second. A task
that makes a second when a version is new to its nodes is ended, and launched again later.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from services.contracts.builds.build_plan import TaskStart
from services.contracts.builds.build_record import BuildRecord
from services.contracts.events import Event, EventKind
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.controller.build.build_order import BuildCandidate, overtaken, turns
from services.controller.build.build_view import FleetView, distinct_pools
from services.controller.build.key_status import KeyState, KeyStatus, RetryPolicy
from services.controller.build.retiming import next_timing
from services.controller.build.task_names import task_name
from services.controller.interfaces import BuildTask, NodePool


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What follows from a view.

    Attributes:
        tasks: to be launched now.
        queued: due too, and behind others or refused just now, in the order of their turns.
        overtaken: running tasks to be ended for one of `queued`.
        next_due_at: when something becomes due by time alone; None when nothing will.
        quarantined: the events of what is tried no more; marks change when it is quarantined anew.
        unplanned: the events of tasks that ended without the plan that is still lacking.
        without_engine: model and generation where nodes are and no planned engine is proven.
        with_engine: the same where one is.
    """

    tasks: tuple[BuildTask, ...] = ()
    queued: tuple[BuildTask, ...] = ()
    overtaken: tuple[TaskStart, ...] = ()
    next_due_at: datetime | None = None
    quarantined: tuple[Event, ...] = ()
    unplanned: tuple[Event, ...] = ()
    without_engine: frozenset[tuple[str, str]] = frozenset()
    with_engine: frozenset[tuple[str, str]] = frozenset()


def decide(view: FleetView, now: datetime, policy: RetryPolicy | None = None) -> Decision:
    """What is to be launched now, and when there may be more.

    Args:
        view: of fleet and store at one moment.
        now: with a time zone; compared with the times in the records.
        policy: None is the policy by default.
    """
    policy = policy or RetryPolicy()
    candidates = [
        _candidate(view, pool, version, now, policy)
        for pool in distinct_pools(view.pools)
        for version in view.versions
        if pool.num_nodes or view.is_newest(version)
    ]
    with_nodes = [p for p in candidates if p.pool.num_nodes]
    lacking = frozenset(_where(p) for p in with_nodes if p.is_urgent)
    tasks, queued = turns(candidates, view)
    return Decision(
        tasks=tasks,
        queued=queued,
        # None ends for a task that may be refused once more.
        overtaken=overtaken(
            candidates, [task for task in queued if task.name not in view.refused], view.running
        ),
        next_due_at=min((at for p in candidates for at in p.later), default=None),
        quarantined=tuple(q for p in candidates for q in p.quarantined),
        unplanned=tuple(
            ended for p in candidates for ended in _unplanned(view, p.version, p.pool, policy)
        ),
        without_engine=lacking,
        with_engine=frozenset(_where(p) for p in with_nodes) - lacking,
    )


def planning_names(
    view: FleetView, version: ModelVersion, pool: NodePool, policy: RetryPolicy
) -> list[str]:
    """Names of the tasks that plan a version for a pool, one for each attempt; none with a plan.

    Args:
        view: has the rebuild requests, each of which makes new names.
        version: of the model that is planned.
        pool: of nodes that the plan is for.
        policy: bounds the number of attempts.
    """
    if view.plan_of(version, pool) is not None:
        return []
    num_requests = len(view.requests_for(version.name, pool.node_class.generation))
    # Another compiler may plan what this one could not.
    return [
        task_name(version, pool, ["plan", num_requests, view.compiler, attempt])
        for attempt in range(1, policy.max_attempts + 1)
    ]


def untouched_key(
    start: TaskStart,
    records: Mapping[str, Sequence[BuildRecord]],
    engines: Mapping[str, PublishedEngine],
) -> str | None:
    """The first key of an ended task for which the store has neither a new record nor a new proof.

    A task takes its keys in order: the process ended while it built or proved this one.

    Args:
        start: what the store held when the task was launched.
        records: by key digest, as they are now.
        engines: by key digest, as they are now.

    Returns:
        None when the store has news of each key.
    """
    for digest in start.key_digests:
        engine = engines.get(digest)
        proof = engine.proof.created_at if engine else ""
        is_recorded = len(records.get(digest, ())) > start.num_records.get(digest, 0)
        if not is_recorded and proof == start.proofs.get(digest, ""):
            return digest
    return None


def task_start(task: BuildTask, view: FleetView, now: str) -> TaskStart:
    """The record of a task that is kept before it is launched.

    Args:
        task: that is to be launched.
        view: of the store, which `untouched_key` later compares with.
        now: ISO 8601, UTC.
    """
    published = {d: view.engines[d] for d in task.key_digests if d in view.engines}
    return TaskStart(
        name=task.name,
        model=task.model,
        version=task.version,
        node_class=task.node_class,
        is_anywhere=task.is_anywhere,
        key_digests=task.key_digests,
        num_records={d: len(view.records.get(d, ())) for d in task.key_digests},
        proofs={digest: engine.proof.created_at for digest, engine in published.items()},
        attempt=task.attempt,
        reason=task.reason,
        created_at=now,
    )


def _where(candidate: BuildCandidate) -> tuple[str, str]:
    return candidate.version.name, candidate.pool.node_class.generation


def _candidate(
    view: FleetView, pool: NodePool, version: ModelVersion, now: datetime, policy: RetryPolicy
) -> BuildCandidate:
    plan = view.plan_of(version, pool)
    if plan is None:
        return _without_plan(view, pool, version, now, policy)
    statuses = view.statuses(version, plan, policy)
    doable = [s for s in statuses if s.state.is_open and _is_doable(s, pool)]
    due = [s for s in doable if s.next_attempt_at is None or s.next_attempt_at <= now]
    later = [at for s in doable if (at := s.next_attempt_at) is not None and at > now]
    is_urgent = not any(s.state is KeyState.PROVEN for s in statuses)
    task = _key_task(view, pool, version, due) if due else None
    if not due and (timing := next_timing(view, version, pool, policy)):
        at, timing_task = timing
        task = timing_task if at <= now else None
        later += [at] if at > now else []
    return BuildCandidate(
        pool=pool,
        version=version,
        task=task,
        first=_key_task(view, pool, version, due[:1]) if due and is_urgent else None,
        later=tuple(later),
        quarantined=tuple(
            _given_up(version, pool, s) for s in statuses if s.state is KeyState.QUARANTINED
        ),
        is_urgent=is_urgent,
    )


def _is_doable(status: KeyStatus, pool: NodePool) -> bool:
    """Whether a pool without nodes needs none for the next step."""
    return bool(pool.num_nodes) or (status.engine is None and status.planned.is_anywhere)


def _key_task(
    view: FleetView, pool: NodePool, version: ModelVersion, due: Sequence[KeyStatus]
) -> BuildTask:
    digests = tuple(status.planned.digest for status in due)
    num_failures = max(status.num_failures for status in due)
    # What the store holds of each key: another attempt has another name, also after a rebuild
    # request, and the same attempt has the same name after a restart of the controller.
    marks = [
        [
            status.planned.digest,
            len(view.records.get(status.planned.digest, ())),
            status.engine.proof.created_at if status.engine else "",
        ]
        for status in due
    ]
    return BuildTask(
        name=task_name(version, pool, marks),
        model=version.name,
        version=version.version,
        node_class=pool.node_class,
        is_anywhere=not pool.num_nodes,
        key_digests=digests,
        compiler=view.compiler,
        attempt=num_failures + 1,
        reason=_task_words(due) + _limit_words(pool),
    )


def _without_plan(
    view: FleetView, pool: NodePool, version: ModelVersion, now: datetime, policy: RetryPolicy
) -> BuildCandidate:
    names = planning_names(view, version, pool, policy)
    ends = [view.ends[name] for name in names if name in view.ends]
    if len(ends) == len(names):
        why = f"plan: no plan could be made, the last time: {ends[-1].detail}"
        event = _quarantined(version, pool, why, mark=ends[-1].name)
        return BuildCandidate(pool=pool, version=version, quarantined=(event,))
    if ends:
        ended_at = datetime.fromisoformat(ends[-1].created_at)
        due_at = policy.next_attempt_at(ended_at, len(ends))
        if due_at > now:
            return BuildCandidate(pool=pool, version=version, later=(due_at,))
    task = BuildTask(
        name=names[len(ends)],
        model=version.name,
        version=version.version,
        node_class=pool.node_class,
        is_anywhere=not pool.num_nodes,
        compiler=view.compiler,
        attempt=len(ends) + 1,
        reason=f"first build for these nodes{_limit_words(pool)}",
    )
    first = task.model_copy(update={"is_first": True})
    return BuildCandidate(pool=pool, version=version, task=task, first=first)


def _unplanned(
    view: FleetView, version: ModelVersion, pool: NodePool, policy: RetryPolicy
) -> Iterator[Event]:
    names = planning_names(view, version, pool, policy)
    for attempt, name in enumerate(names, start=1):
        if name in view.ends:
            which = f"attempt {attempt} of {len(names)}"
            yield Event(
                kind=EventKind.BUILD_FAILED,
                model=version.name,
                version=version.version,
                generation=pool.node_class.generation,
                mark=f"{name} ended",
                why=f"no plan was made ({which}): {view.ends[name].detail}",
            )


def _quarantined(
    version: ModelVersion, pool: NodePool, why: str, *, mark: str, key: str = ""
) -> Event:
    return Event(
        kind=EventKind.QUARANTINED,
        model=version.name,
        version=version.version,
        generation=pool.node_class.generation,
        key=key,
        mark=mark,
        why=f"{why}; to retry: smelt rebuild {version.name}",
    )


def _given_up(version: ModelVersion, pool: NodePool, status: KeyStatus) -> Event:
    key = status.planned
    why = f"{key.words}: failed {status.num_failures} times, the last time: {status.reason}"
    return _quarantined(version, pool, why, mark=key.digest, key=key.digest)


def _task_words(due: Sequence[KeyStatus]) -> str:
    num_built = sum(status.engine is not None for status in due)
    parts = (
        f"{len(due) - num_built} to build" if num_built < len(due) else "",
        f"{num_built} to prove" if num_built else "",
    )
    return ", ".join(part for part in parts if part)


def _limit_words(pool: NodePool) -> str:
    return "" if pool.num_nodes else "; no node yet: only what can be built ahead of time"
