"""One case of `smelt why` as plain data, from which both its JSON and its text are made."""

from typing import Any

from services.contracts.builds.key_difference import KeyDifference, nearest_engine
from services.contracts.model.manifest import PublishedEngine
from services.contracts.selection.selection import mean_speedup
from services.contracts.selection.speed_gate import is_wild, speed_bounds, speed_over_fallback
from services.contracts.text.words import NO_FLEET, counted, readable_time, worker_command
from services.controller.build.key_status import KeyState, KeyStatus
from services.controller.events.fallback_words import (
    INTERIM,
    fallback_name,
    fallback_why,
    loading_words,
    replica_state,
)
from services.controller.explain.proof_words import proof_words
from services.controller.explain.running_builds import is_held
from services.controller.explain.why_case import Case
from services.pb import fleet_v1_pb2 as fleet

SHORT = 12
_OTHER_BUILD = "another build works on an engine of it meanwhile"


def case_document(case: Case, store_url: str) -> dict[str, Any]:
    """Everything about one generation; `store_url` is for the commands in it."""
    verdict = case.version.fallback_verdict
    selection = case.selection
    rejections = selection.rejections if selection else ()
    return {
        "serves": _serves(case),
        "decided_by": selection.joint.words if selection else "",
        "is_live": case.replicas is not None,
        "replicas": [
            {
                "replica": replica.replica_id,
                "state": replica_state(replica),
                "state_since": replica.state_since or None,
                "engine_digest": replica.engine_digest,
                "fallback_reason": replica.fallback_reason,
                "fallback_refuted": replica.fallback_refuted,
            }
            for replica in case.replicas or ()
        ],
        "fallback_verdict": verdict and verdict.model_dump(mode="json"),
        "build": _build(case),
        "planned": [_key_document(status, case, store_url) for status in case.statuses],
        "skipped": [s.model_dump() for s in case.plan.skipped] if case.plan else [],
        "passed_over": [
            {"digest": r.digest, "reason": r.reason.value, "detail": r.detail} for r in rejections
        ],
    }


def _build(case: Case) -> dict[str, Any] | None:
    """Its place in the queue, and that another build has a key of it: by hand, of a twin."""
    build = case.build
    if build is None or build["started_at"] or not any(map(is_held, case.stages.values())):
        return build
    return build | {"words": f"{build['words']}; {_OTHER_BUILD}"}


def _key_document(status: KeyStatus, case: Case, store_url: str) -> dict[str, Any]:
    key = status.planned.key
    digest = status.planned.digest
    at = status.next_attempt_at
    nearest = _nearest(status, case)
    timings = case.timings(status.engine)
    bounds = speed_bounds(timings)
    # Another interpreter may lack the engine's libraries, another store has no such key.
    replay = worker_command(store_url, "replay", digest[:SHORT])
    proof = status.engine.proof if status.engine else None
    stage = case.stages.get(digest)
    document = {
        "digest": digest,
        "words": status.planned.words,
        "kind": key.kind.value,
        "precision": key.precision.value,
        "key_state": status.state.value,
        "state": stage["name"] if stage else status.state.words,
        "stage": stage,
        "rank": case.ranks.get(digest),
        "reason": status.reason or _passed_over(digest, case),
        "num_failures": status.num_failures,
        "next_attempt_at": at.isoformat(timespec="seconds") if at else None,
        "replay": replay if case.has_worst_sample(digest) else None,
        "p50_s": [{"sizes": t.sizes, "p50_s": t.p50_s} for t in timings],
        "speed_over_eager": mean_speedup(timings) if timings else None,
        "speed_over_fallback": speed_over_fallback(timings),
        "speed_bounds": bounds and [bounds.low, bounds.high],
        "is_wild": is_wild(timings),
        "proof": proof
        and {
            "samples": proof.samples,
            "power": [check.model_dump() for check in proof.power],
            "words": proof_words(proof),
            "fallback": proof.fallback,
        },
        "nearest": nearest
        and {"digest": nearest[0].digest, "differences": [vars(d) for d in nearest[1]]},
    }
    return document | {"why": _why(document, case.version.name)}


def _why(key: dict[str, Any], model: str) -> str:
    """Why a key does not serve, and what can be done; "" when it does."""
    words = str(key["stage"]["words"] if key["stage"] else key["reason"])
    match key["key_state"]:
        case KeyState.PROVEN:
            return words
        case KeyState.QUARANTINED:
            words = f"quarantined after {key['num_failures']} failures: {words}; to retry: "
            words += f"smelt rebuild {model}"
        case KeyState.PROOF_FAILED:
            words += "; where such answers will do, `tolerances` in the recipe allow them; "
            words += f"the same engine again: smelt rebuild {model}"
        case KeyState.FAILED if key["next_attempt_at"] and not key["stage"]:
            at = readable_time(key["next_attempt_at"])
            words += f"; a controller tries it again from {at} on, smelt build {model} at once"
    return f"{words}; its worst sample again: {key['replay']}" if key["replay"] else words


def _nearest(status: KeyStatus, case: Case) -> tuple[PublishedEngine, list[KeyDifference]] | None:
    """The nearest of its own kind and precision: others are keys of their own."""
    if status.engine:
        return None
    key = status.planned.key
    keys = ((each, each.manifest.key) for each in case.engines)
    own = [each for each, its in keys if its.kind is key.kind and its.precision is key.precision]
    return nearest_engine(key, own)


def _passed_over(digest: str, case: Case) -> str:
    """Why a replica does not take an engine that is proven; "" when it does."""
    rejections = case.selection.rejections if case.selection else ()
    return next((f"passed over: {r.detail}" for r in rejections if r.digest == digest), "")


def _serves(case: Case) -> str:
    """What serves there, or would."""
    if case.replicas:
        words = sorted({_replica_words(report) for report in case.replicas})
        return f"{'; '.join(words)} ({counted(len(case.replicas), 'replica')})"
    asked = "no replica is attached" if case.replicas is not None else NO_FLEET
    if case.selection is None:
        if case.plan is not None:
            return f"{asked}; no such node was seen yet"
        if case.build is None:
            return f"{asked}; nothing is planned there yet"
        return f"{asked}; its first build {'runs' if case.build['started_at'] else 'is queued'}"
    if case.selection.engine is not None:
        key = case.selection.engine.manifest.key
        digest = case.selection.engine.digest[:SHORT]
        return f"{asked}; one would serve with {key.kind} {key.precision} {digest}"
    reason = case.selection.fallback_reason
    return f"{asked}; one would serve with the fallback: {reason.words if reason else ''}"


def _replica_words(report: fleet.ReplicaReport) -> str:
    if words := loading_words(report):
        return words
    if not report.engine_digest:
        why = fallback_why(report)
        with_what = f"serves with the fallback ({fallback_name(report)})"
        until = f"; {INTERIM}" if report.is_fallback_interim else ""
        return f"{with_what}: {why}{until}" if why else "is still starting"
    digest = report.engine_digest[:SHORT]
    return f"serves with {report.engine_kind} {report.engine_precision} {digest}"
