"""The events of hardware and builds: what is observed now, less what has its event already. Pure.

Each function yields events without a time; the recorder adds it, and the seconds since the change
that led there.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from services.contracts.builds.build_plan import TaskStart
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.events import Event, EventKind
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import ModelVersion, ProofOutcome, PublishedEngine
from services.contracts.selection.speed_gate import rejection_reason
from services.controller.build.build_view import FleetView
from services.controller.events.event_state import EventState, record_mark
from services.controller.events.joint_events import eager_words, speed_words

_SHORT = 12
_FAILED_KINDS = {
    BuildOutcome.FAILED: EventKind.BUILD_FAILED,
    BuildOutcome.PROOF_FAILED: EventKind.PROOF_FAILED,
}
_PROOF_KINDS = {
    ProofOutcome.PASSED: EventKind.PROOF_PASSED,
    ProofOutcome.FAILED: EventKind.PROOF_FAILED,
}


def hardware_events(state: EventState, view: FleetView) -> Iterator[Event]:
    """Generations and toolchains that came or went."""
    present: dict[str, dict[str, NodeClass]] = {}
    for pool in view.pools:
        if pool.num_nodes:
            classes = present.setdefault(pool.node_class.generation, {})
            classes[pool.node_class.digest()[:_SHORT]] = pool.node_class
    known = state.classes()
    for generation, classes in sorted(present.items()):
        mark = ",".join(sorted(classes))
        before = known.get(generation)
        if mark != before:
            # `before` is such a mark: as digests have one length, none is a part of another.
            new = [each for digest, each in sorted(classes.items()) if digest not in (before or "")]
            yield Event(
                kind=EventKind.TOOLCHAIN_CHANGED if before else EventKind.GENERATION_APPEARED,
                generation=generation,
                mark=mark,
                why="; ".join(map(_class_words, new)) or "nodes of another class are gone",
            )
    for generation in sorted(known.keys() - present.keys()):
        why = _gone_words(generation, view)
        yield Event(kind=EventKind.GENERATION_GONE, generation=generation, why=why)


def build_events(state: EventState, view: FleetView) -> Iterator[Event]:
    """Tasks that began, engines that were published or proven, and attempts that failed."""
    yield from state.new(map(_started, view.running))
    waiting = (start for start in view.running if start.name in view.waiting)
    yield from state.new(_waiting(start, view.waiting[start.name]) for start in waiting)
    # Two models may share a master: what concerns both has one event.
    engines: set[str] = set()
    keys: set[str] = set()
    for version in view.versions:
        for engine in view.engines_by_master.get(version.master.digest, ()):
            if engine.digest not in engines:
                engines.add(engine.digest)
                yield from _engine_events(state, version, engine)
        for digest in _planned_digests(view, version):
            if digest not in keys:
                keys.add(digest)
                yield from _record_events(state, version, digest, view.records.get(digest, ()))


def _gone_words(generation: str, view: FleetView) -> str:
    """Why a generation counts as gone: there is no node, or those that are take nothing new."""
    names = [
        name
        for pool in view.pools
        if pool.node_class.generation == generation and pool.num_known
        for name in pool.names
    ]
    return f"its nodes are unschedulable: {', '.join(names)}" if names else "it has no node"


def _class_words(node_class: NodeClass) -> str:
    parts = (
        node_class.device or "unknown device",
        f"{node_class.memory_gib} GiB" if node_class.memory_gib else "",
        f"driver {node_class.driver}" if node_class.driver else "",
        f"toolchain {node_class.toolchain}" if node_class.toolchain else "",
    )
    return ", ".join(part for part in parts if part)


def _started(start: TaskStart) -> Event:
    return Event(
        kind=EventKind.BUILD_STARTED,
        model=start.model,
        version=start.version,
        generation=start.node_class.generation,
        mark=start.name,
        why=f"{start.reason} (attempt {start.attempt})" if start.attempt > 1 else start.reason,
    )


def _waiting(start: TaskStart, detail: str) -> Event:
    why = f"{start.reason}; runs nowhere yet: {detail or 'no reason is known'}"
    changes = {"kind": EventKind.BUILD_WAITING, "mark": f"{start.name} waits", "why": why}
    return _started(start).model_copy(update=changes)


def gave_way(start: TaskStart) -> Event:
    """That a build of further engines was ended for another model's first."""
    why = "preempted: another model has no engine yet; queued again behind it"
    changes = {"kind": EventKind.BUILD_WAITING, "mark": f"{start.name} gave way", "why": why}
    return _started(start).model_copy(update=changes)


def _engine_events(
    state: EventState, version: ModelVersion, engine: PublishedEngine
) -> Iterator[Event]:
    manifest = engine.manifest
    proof = engine.proof
    event = partial(
        Event,
        model=version.name,
        version=version.version,
        generation=manifest.key.generation,
        key=engine.digest,
    )
    what = f"{manifest.key.kind} {manifest.key.precision}"
    why = f"{what} in {manifest.build_duration_s:.1f} s"
    finished = event(kind=EventKind.BUILD_FINISHED, mark=manifest.created_at, why=why)
    yield from state.new((finished,))
    if kind := _PROOF_KINDS.get(proof.outcome):
        for proven in state.new((event(kind=kind, mark=proof.created_at),)):
            found = proof.reason or _speed_words(engine, version)
            yield proven.model_copy(update={"why": f"{what}: {found}"})


def _speed_words(engine: PublishedEngine, version: ModelVersion) -> str:
    timings = engine.proof.timings
    if fault := rejection_reason(timings, version.recipe, version.name):
        return "; ".join(filter(None, (eager_words(timings), fault)))
    return speed_words(timings) or "not timed"


def _record_events(
    state: EventState, version: ModelVersion, digest: str, records: Sequence[BuildRecord]
) -> Iterator[Event]:
    for number, record in state.unrecorded("record", digest, records):
        if record.outcome in _FAILED_KINDS:
            yield Event(
                kind=_FAILED_KINDS[record.outcome],
                model=version.name,
                version=version.version,
                generation=record.key.generation,
                key=digest,
                mark=record_mark(number),
                why=f"{record.key.kind} {record.key.precision} in stage "
                f"'{record.stage}': {record.reason}",
            )


def _planned_digests(view: FleetView, version: ModelVersion) -> list[str]:
    known = view.plans.get((version.name, version.version), ())
    return list(dict.fromkeys(p.digest for plan in known for p in plan.planned))
