"""What is news: what is seen now, less what the event trail has told already. Pure.

Each function yields events without time; who appends them adds it, and the seconds since the
change that led there.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from services.contracts.build_plan import TaskStart
from services.contracts.events import Event, EventKind, TrailFold
from services.contracts.gate import rejection_reason
from services.contracts.hardware import generation_named
from services.contracts.manifest import (
    BuildOutcome,
    BuildRecord,
    ModelVersion,
    ProofOutcome,
    PublishedEngine,
)
from services.contracts.node_class import NodeClass
from services.controller.build_view import FleetView
from services.controller.event_fold import FALLBACK, place, record_mark, waiting_mark
from services.controller.fallback_words import fallback_why
from services.controller.joint_news import eager_words, speed_words
from services.controller.load_news import load_news, removal_news, weight_news
from services.pb import fleet_v1_pb2 as fleet

_SHORT = 12
_FAILED_KINDS = {
    BuildOutcome.FAILED: EventKind.BUILD_FAILED,
    BuildOutcome.PROOF_FAILED: EventKind.PROOF_FAILED,
}
_PROOF_KINDS = {
    ProofOutcome.PASSED: EventKind.PROOF_PASSED,
    ProofOutcome.FAILED: EventKind.PROOF_FAILED,
}


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What replicas of one model version serve with on one generation.

    Attributes:
        digest: of the engine; "" for the fallback.
        why: the reason for the fallback, or the engine in words.
    """

    model: str
    version: int
    generation: str
    digest: str
    why: str


def hardware_news(fold: TrailFold, view: FleetView) -> Iterator[Event]:
    """Generations and toolchains that came or went."""
    present: dict[str, dict[str, NodeClass]] = {}
    for pool in view.pools:
        if pool.num_nodes:
            classes = present.setdefault(pool.node_class.generation, {})
            classes[pool.node_class.digest()[:_SHORT]] = pool.node_class
    for generation, classes in sorted(present.items()):
        mark, told = ",".join(sorted(classes)), fold.node_classes.get(generation)
        if mark == told:
            continue
        news = [each for digest, each in sorted(classes.items()) if digest not in (told or "")]
        yield Event(
            at="",
            kind=EventKind.GENERATION_APPEARED if told is None else EventKind.TOOLCHAIN_CHANGED,
            generation=generation,
            mark=mark,
            why="; ".join(map(_class_words, news)) or "nodes of another class are gone",
        )
    for generation in sorted(fold.node_classes.keys() - present.keys()):
        yield Event(
            at="",
            kind=EventKind.GENERATION_GONE,
            generation=generation,
            why=_gone_words(generation, view),
        )


def model_news(fold: TrailFold, view: FleetView) -> Iterator[Event]:
    """Versions that were published or removed; loads, weights and rebuilds that were asked for."""
    yield from removal_news(fold, view)
    for version in filter(view.is_newest, view.versions):
        if fold.versions.get(version.name, 0) < version.version:
            is_same_master = fold.masters.get(version.name) == version.master.digest
            yield Event(
                at="",
                kind=EventKind.RECIPE_CHANGED if is_same_master else EventKind.MODEL_PUBLISHED,
                model=version.name,
                version=version.version,
                key=version.master.digest,
                why=f"from {version.source}{_refuted(version)}",
            )
        yield from load_news(fold, view, version)
        yield from weight_news(fold, view, version)
        requests = view.requests.get(version.name, ())
        told = fold.num_rebuilds.get(version.name, 0)
        for number, request in enumerate(requests[told:], start=told + 1):
            yield Event(
                at="",
                actor=request.who,
                kind=EventKind.REBUILD_REQUESTED,
                model=request.model,
                version=request.version,
                generation=request.generation,
                mark=str(number),
                why=request.why
                or f"{len(request.disregarded)} failed, {len(request.reprove)} published engines",
            )


def _refuted(version: ModelVersion) -> str:
    verdict = version.fallback_verdict
    return f"; {verdict.words}" if verdict and verdict.refuted else ""


def build_news(fold: TrailFold, view: FleetView) -> Iterator[Event]:
    """Tasks that began, engines that were published or proven, and attempts that failed."""
    for start in view.running:
        if start.name not in fold.tasks:
            yield _started(start)
        if start.name in view.waiting and waiting_mark(start.name) not in fold.tasks:
            yield _waiting(start, view.waiting[start.name])
    # Two models may share a master: what concerns both is told once.
    engines: set[str] = set()
    keys: set[str] = set()
    for version in view.versions:
        for engine in view.engines_by_master.get(version.master.digest, ()):
            if engine.digest not in engines:
                engines.add(engine.digest)
                yield from _engine_news(fold, version, engine)
        for digest in _planned_digests(view, version):
            if digest not in keys:
                keys.add(digest)
                yield from _record_news(fold, version, digest, view.records.get(digest, ()))


def serving_news(fold: TrailFold, served: Iterable[Serving]) -> Iterator[Event]:
    """Where replicas came to serve with something else, and where a model that was unloaded ended.

    Of generations that are known, and of versions that were not removed: those only drain.
    """
    seen = [each for each in served if each.version not in fold.removed.get(each.model, ())]
    yield from _endings(fold, seen)
    for now in seen:
        told = fold.serving.get(place(now.model, now.version, now.generation))
        if now.generation in fold.node_classes and told != (now.digest or FALLBACK):
            yield Event(
                at="",
                kind=EventKind.ENGINE_SERVING if now.digest else EventKind.FALLBACK_SERVING,
                model=now.model,
                version=now.version,
                generation=now.generation,
                key=now.digest,
                why=now.why,
            )


def _endings(fold: TrailFold, served: Iterable[Serving]) -> Iterator[Event]:
    now = {place(each.model, each.version, each.generation) for each in served}
    for where in sorted(fold.serving.keys() - now):
        model, version, generation = where.rsplit("/", 2)
        if model in fold.unloaded:
            yield Event(
                at="",
                kind=EventKind.SERVING_ENDED,
                model=model,
                version=int(version),
                generation=generation,
                why="unloaded: no replica of it takes requests there any more",
            )


def serving_of(snapshot: fleet.FleetSnapshot) -> list[Serving]:
    """What most ready replicas serve with, by model, version and generation.

    The fallback counts where no replica has an engine only: during a swap both are seen.
    """
    votes: dict[tuple[str, int, str], Counter[tuple[bool, str, str]]] = {}
    for report in snapshot.replicas:
        if report.state == fleet.REPLICA_STATE_READY and report.device_facts_json:
            generation = generation_named(report.device_facts_json)
            where = (report.model_name, report.model_version, generation)
            votes.setdefault(where, Counter())[_vote(report)] += 1
    return [
        Serving(model=model, version=version, generation=generation, digest=digest, why=why)
        for (model, version, generation), counted in sorted(votes.items())
        for (_, digest, why), _ in [max(counted.items(), key=lambda item: (item[0][0], item[1]))]
    ]


def _vote(report: fleet.ReplicaReport) -> tuple[bool, str, str]:
    if not report.engine_digest:
        return False, "", fallback_why(report)
    return True, report.engine_digest, f"{report.engine_kind} {report.engine_precision}"


def _gone_words(generation: str, view: FleetView) -> str:
    """Why a generation counts as gone: there is no node, or those that are take nothing new."""
    names = [
        name
        for pool in view.pools
        if pool.node_class.generation == generation and pool.num_known
        for name in pool.names
    ]
    return f"its nodes take nothing new: {', '.join(names)}" if names else "no node has it"


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
        at="",
        kind=EventKind.BUILD_STARTED,
        model=start.model,
        version=start.version,
        generation=start.node_class.generation,
        mark=start.name,
        why=f"{start.reason} (attempt {start.attempt})" if start.attempt > 1 else start.reason,
    )


def _waiting(start: TaskStart, detail: str) -> Event:
    why = f"{start.reason}; runs nowhere yet: {detail or 'nobody says why'}"
    mark = waiting_mark(start.name)
    return _started(start).model_copy(
        update={"kind": EventKind.BUILD_WAITING, "mark": mark, "why": why}
    )


def _engine_news(
    fold: TrailFold, version: ModelVersion, engine: PublishedEngine
) -> Iterator[Event]:
    key, proof = engine.manifest.key, engine.proof
    told = fold.engines.get(engine.digest)
    what = f"{key.kind} {key.precision}"
    subject = Event(
        at="",
        kind=EventKind.BUILD_FINISHED,
        model=version.name,
        version=version.version,
        generation=key.generation,
        key=engine.digest,
        mark=engine.manifest.created_at,
        why=f"{what} in {engine.manifest.build_duration_s:.1f} s",
    )
    if told is None:
        yield subject
    if proof.outcome in _PROOF_KINDS and told != proof.created_at:
        found = proof.reason or _speed_words(engine, version)
        yield subject.model_copy(
            update={
                "kind": _PROOF_KINDS[proof.outcome],
                "mark": proof.created_at,
                "why": f"{what}: {found}",
            }
        )


def _speed_words(engine: PublishedEngine, version: ModelVersion) -> str:
    timings = engine.proof.timings
    if fault := rejection_reason(timings, version.recipe):
        return "; ".join(filter(None, (eager_words(timings), fault)))
    return speed_words(timings) or "not timed"


def _record_news(
    fold: TrailFold, version: ModelVersion, digest: str, records: Sequence[BuildRecord]
) -> Iterator[Event]:
    told = fold.num_records.get(digest, 0)
    for number, record in enumerate(records[told:], start=told + 1):
        if record.outcome in _FAILED_KINDS:
            yield Event(
                at="",
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
