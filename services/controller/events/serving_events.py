"""The events of replicas and external servers: what serves, and what does not. Pure."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

from services.contracts.events import Event, EventKind
from services.contracts.external.external_model import ExternalModel
from services.contracts.hardware.facts import generation_named
from services.controller.events.event_state import EventState, subject_of
from services.controller.events.fallback_words import fallback_why
from services.pb import fleet_v1_pb2 as fleet

_SHORT = 12
_REFUTED = "refuted"
# Whether it is an engine; mark, digest and words of the event.
_Vote = tuple[bool, str, str, str]


def serving_events(state: EventState, served: Iterable[Event]) -> Iterator[Event]:
    """Where replicas came to serve with something else, and where an unloaded model ended.

    Of generations that are known, and of versions that were not removed: those only drain.
    """
    seen = [each for each in served if not state.is_removed(each.model, each.version)]
    here = set(map(subject_of, seen))
    unloaded = (each for model in state.unloaded_models() for each in state.serving(model))
    for before in unloaded:
        if subject_of(before) not in here:
            why = "unloaded: no replica of it takes requests there any more"
            changes = {"kind": EventKind.SERVING_ENDED, "key": "", "why": why}
            yield before.model_copy(update=changes)
    generations = state.classes()
    yield from state.new(each for each in seen if each.generation in generations)


def serving_of(snapshot: fleet.FleetSnapshot) -> list[Event]:
    """What most ready replicas serve with, by model, version and generation.

    The fallback counts only where no replica has an engine: during a swap both are seen. Among
    fallbacks, one that a replica found wrong counts before those of replicas that found nothing:
    a replica that is still compiling its own has not compared it yet.
    """
    votes: dict[tuple[str, int, str], Counter[_Vote]] = {}
    for report in snapshot.replicas:
        if report.state == fleet.REPLICA_STATE_READY and report.device_facts_json:
            generation = generation_named(report.device_facts_json)
            where = (report.model_name, report.model_version, generation)
            votes.setdefault(where, Counter())[_vote(report)] += 1
    # By the digest in the end: replicas attach in any order.
    return [
        _serving(where, max(counted.items(), key=lambda i: (i[0][:2], i[1], i[0][2]))[0])
        for where, counted in sorted(votes.items())
    ]


# Once for equal facts: most replicas serve with what they served with before.
@lru_cache(maxsize=1 << 14)
def _serving(where: tuple[str, int, str], vote: _Vote) -> Event:
    model, version, generation = where
    _, mark, digest, why = vote
    return Event(
        kind=EventKind.ENGINE_SERVING if digest else EventKind.FALLBACK_SERVING,
        model=model,
        version=version,
        generation=generation,
        key=digest,
        mark=mark,
        why=why,
    )


def without_missing(served: Iterable[Event], snapshot: fleet.FleetSnapshot) -> list[Event]:
    """Those of versions of which as many replicas are ready as are wanted."""
    missing = {version for version, num in _num_missing(snapshot).items() if num > 0}
    return [each for each in served if (each.model, each.version) not in missing]


def _num_missing(snapshot: fleet.FleetSnapshot) -> dict[tuple[str, int], int]:
    """How many more replicas of each version are wanted than are ready."""
    ready = Counter(
        (report.model_name, report.model_version)
        for report in snapshot.replicas
        if report.state == fleet.REPLICA_STATE_READY
    )
    wanted = {(each.name, each.version): each.num_replicas_wanted for each in snapshot.models}
    return {version: num - ready[version] for version, num in wanted.items()}


def lost_replicas(snapshot: fleet.FleetSnapshot) -> list[Event]:
    """Replicas whose connection to the controller ended while they were ready."""
    return [
        Event(
            kind=EventKind.REPLICA_LOST,
            model=report.model_name,
            version=report.model_version,
            generation=generation_named(report.device_facts_json),
            # Revisions begin anew with each controller process.
            mark=f"{report.replica_id} lost {snapshot.epoch:x}.{report.lost_revision}",
            why=f"replica {report.replica_id} (process {report.process_id}) ended, or its "
            "connection broke, while it was ready; it attaches again, or another one is started",
        )
        for report in snapshot.unseen
    ]


def restored_replicas(state: EventState, snapshot: fleet.FleetSnapshot) -> Iterator[Event]:
    """Losses that ended: the replica is ready again, or fewer of its version are missing.

    An event has the mark of the loss, and takes its place: neither is recorded twice. Of the other
    losses of a version as many stay open, the last ones, as replicas are missing: that one that
    ended was replaced, or fewer are wanted, is as true for the controller that starts again.
    """
    ready = {r.replica_id for r in snapshot.replicas if r.state == fleet.REPLICA_STATE_READY}
    num_missing = _num_missing(snapshot)
    num_open = Counter[tuple[str, int]]()
    for lost in reversed(state.lost_replicas()):
        replica = lost.mark.rpartition(" lost ")[0]
        version = lost.model, lost.version
        why = "is ready again"
        if replica not in ready:
            num_open[version] += 1
            why = "is replaced, or fewer replicas are wanted"
        # Of a version that is not known yet, or no more, nothing is known.
        if replica in ready or num_open[version] > num_missing.get(version, num_open[version]):
            why = f"replica {replica}, which was lost, {why}"
            yield lost.model_copy(update={"kind": EventKind.REPLICA_RESTORED, "why": why})


def unplaced_replicas(snapshot: fleet.FleetSnapshot) -> list[Event]:
    """Versions of which replicas are placed on no node; marks have the reason."""
    return [
        Event(
            kind=EventKind.REPLICAS_UNPLACED,
            model=model.name,
            version=model.version,
            mark=f"{model.name}/{model.version} unplaced {_digest(model.unplaced)}",
            why=model.unplaced,
        )
        for model in snapshot.models
        if model.unplaced
    ]


def external_models(snapshot: fleet.FleetSnapshot) -> list[Event]:
    """What is found of external servers; marks have the kind of fault."""
    return [
        Event(
            kind=EventKind.EXTERNAL_READY if is_ready else EventKind.EXTERNAL_FAILED,
            model=model.name,
            version=model.version,
            mark="ready" if is_ready else model.reason.partition(":")[0],
            why=ExternalModel.from_json(model.external_json).words if is_ready else model.reason,
        )
        for model in snapshot.models
        if model.external_json and model.state != "LOADING" and not model.is_unloaded
        for is_ready in [model.state == "READY"]
    ]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_SHORT]


def _vote(report: fleet.ReplicaReport) -> _Vote:
    if not report.engine_digest:
        # Not its words: they have figures, which differ between replicas.
        return False, _REFUTED if report.fallback_refuted else "", "", fallback_why(report)
    return True, "", report.engine_digest, f"{report.engine_kind} {report.engine_precision}"
