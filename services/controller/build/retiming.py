"""When engines are timed again whose times do not differ from the fallback's or the best's. Pure.

What was launched for it is in the store before it runs, with its time: an attempt counts whatever
becomes of it, so that a run that fails, or a controller that is killed, never leads to a busy loop.
"""

from collections.abc import Sequence
from datetime import datetime

from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.selection.joint_order import unsettled
from services.controller.build.build_view import FleetView
from services.controller.build.key_status import KeyState, RetryPolicy
from services.controller.build.task_names import task_name
from services.controller.interfaces import BuildTask, NodePool


def timing_names(
    view: FleetView, version: ModelVersion, pool: NodePool, policy: RetryPolicy
) -> list[str]:
    """Names of the tasks that time engines again, one for each attempt; none when none is to be.

    Another engine or another proof gives other names, so attempts are counted anew.

    Args:
        view: has engines and joint runs.
        version: of the model.
        pool: without nodes nothing is timed.
        policy: has the number of attempts.
    """
    engines = _engines(view, version, pool, policy)
    generation = pool.node_class.generation
    runs = view.runs.get(version.master.digest, ())
    if not pool.num_nodes or not unsettled(engines, version.recipe, generation, runs):
        return []
    marks = sorted([engine.digest, engine.proof.created_at] for engine in engines)
    attempts = range(1, policy.max_timings + 1)
    return [task_name(version, pool, ["time", marks, attempt]) for attempt in attempts]


def next_timing(
    view: FleetView, version: ModelVersion, pool: NodePool, policy: RetryPolicy
) -> tuple[datetime, BuildTask] | None:
    """When to launch which timing task; see `timing_names` for the arguments.

    Returns:
        None when nothing is to be timed, or was often enough.
    """
    names = timing_names(view, version, pool, policy)
    starts = [view.timings[name] for name in names if name in view.timings]
    if len(starts) == len(names):
        return None
    engines = _engines(view, version, pool, policy)
    times = [datetime.fromisoformat(start.created_at) for start in starts]
    # Not by what is written there: compilers have their own clocks, which may be hours off.
    marks = [(engine.digest, engine.proof.created_at) for engine in engines]
    marks += [
        (version.master.digest, run.created_at)
        for run in view.runs.get(version.master.digest, ())
        if run.device.generation == pool.node_class.generation
    ]
    timed_at = max(times + [view.since(mark) for mark in marks])
    task = BuildTask(
        name=names[len(starts)],
        model=version.name,
        version=version.version,
        node_class=pool.node_class,
        is_anywhere=False,
        compiler=view.compiler,
        attempt=len(starts) + 1,
        reason="no engine is missing; engines whose times do not differ are timed again",
    )
    return policy.next_timing_at(timed_at, len(starts)), task


def _engines(
    view: FleetView, version: ModelVersion, pool: NodePool, policy: RetryPolicy
) -> Sequence[PublishedEngine]:
    """The proven ones of a pool's plan."""
    plan = view.plan_of(version, pool)
    statuses = view.statuses(version, plan, policy) if plan else ()
    return [s.engine for s in statuses if s.engine and s.state is KeyState.PROVEN]
