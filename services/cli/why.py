"""`smelt why`: what serves a model on a generation, and why nothing better does."""

from collections.abc import Sequence
from typing import Any

from services.cli.control_client import fleet_on_store
from services.cli.output import console, milliseconds, print_json, print_table, times
from services.cli.proof_words import proof_words
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.cli.told import last_trouble, replicas_of, turns_of, unplaced_of, where
from services.cli.why_case import Case, case_of
from services.cli.why_keys import difference_words
from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.gate import is_wild, speed_bounds, speed_over_fallback
from services.contracts.hardware import Generation
from services.contracts.key_difference import KeyDifference, nearest_engine
from services.contracts.manifest import Proof, PublishedEngine
from services.contracts.selection import FallbackReason, mean_speedup
from services.contracts.signing import TrustRoot
from services.contracts.words import readable_time
from services.controller.fallback_words import fallback_name, fallback_why
from services.controller.key_status import KeyStatus, Standing
from services.pb import fleet_v1_pb2 as fleet

_COLUMNS = ("rank", "kind", "precision", "state", "p50", "x eager", "x fallback", "engine")
_SHORT = 12
_ELSEWHERE = FallbackReason.NO_ENGINE_FOR_GENERATION


def run_why(
    settings: CliSettings,
    name: str,
    generation: str,
    *,
    version: int | None = None,
    as_json: bool,
) -> None:
    """Explain one generation, or all that are planned or serve.

    Args:
        settings: of the command line.
        name: of the model.
        generation: "" for all.
        version: the newest by default.
        as_json: print one document in place of tables.

    Raises:
        NotFoundError: no such model or version, or nothing is known of the generation.
        InvalidRequestError: no such generation, or no model is named.
    """
    if not name:
        raise InvalidRequestError("smelt why: name a MODEL, or two keys: smelt why --keys A B")
    wanted = str(Generation.parse(generation)) if generation else ""
    registry = open_registry(settings)
    explained = registry.model_version(name, version)
    snapshot = fleet_on_store(settings)
    replicas, turns = replicas_of(snapshot, explained), turns_of(snapshot, name, explained.version)
    plans = registry.build_plans(name, explained.version)
    planned = {plan.node_class.generation for plan in plans}
    known = sorted(planned | {where(replica) for replica in replicas or ()} | turns.keys())
    if wanted and wanted not in known:
        raise NotFoundError(
            f"nothing is planned for {name} version {explained.version} on {wanted}; there are "
            f"plans for {', '.join(known) or 'no generation'}. "
            + (
                last_trouble(registry, name, wanted)
                or "A controller makes one when such a node appears; by hand: python -m "
                f"compiler_worker plan {name} --generation {wanted}"
            )
        )
    trust = TrustRoot(settings.trust_root) if settings.trust_root else None
    cases = [
        case_of(registry, explained, g, plans, replicas, turns.get(g), trust)
        for g in known
        if wanted in ("", g)
    ]
    unplaced = unplaced_of(snapshot, name, explained.version)
    if as_json:
        print_json({"model": name, "version": explained.version, "unplaced": unplaced,
                    "generations": [_document(case) for case in cases]})  # fmt: skip
        return
    if not cases:
        console.print(f"{name} version {explained.version}: nothing is planned for any generation")
        if trouble := last_trouble(registry, name, ""):
            console.print(trouble, soft_wrap=True)
    for case in cases:
        _print(case)
    if unplaced:
        console.print(f"{name}: {unplaced}", markup=False, soft_wrap=True)


def _document(case: Case) -> dict[str, Any]:
    ranks, verdict = _ranks(case), case.version.fallback_verdict
    return {
        "generation": case.generation,
        "serves": _serves(case),
        "decided_by": case.decided_by,
        "is_live": case.replicas is not None,
        "replicas": [
            {"replica": r.replica_id, "engine_digest": r.engine_digest,
             "fallback_reason": r.fallback_reason, "fallback_refuted": r.fallback_refuted}
            for r in case.replicas or ()
        ],
        "fallback_verdict": verdict and verdict.model_dump(mode="json"),
        "build": case.turn and case.turn.document(),
        "planned": [_key_document(status, case, ranks) for status in case.statuses],
        "skipped": [s.model_dump() for s in case.plan.skipped] if case.plan else [],
        "passed_over": [
            {"digest": r.digest, "reason": r.reason.value, "detail": r.detail}
            for r in case.rejections.values()
        ],
    }  # fmt: skip


def _key_document(status: KeyStatus, case: Case, ranks: dict[str, int]) -> dict[str, Any]:
    at, nearest = status.next_attempt_at, _nearest(status, case)
    key, timings = status.planned.key, case.timings(status.engine)
    return {
        "digest": status.planned.digest,
        "kind": key.kind.value,
        "precision": key.precision.value,
        "standing": status.standing.value,
        "rank": ranks.get(status.planned.digest),
        "reason": status.reason or _passed_over(status, case),
        "num_failures": status.num_failures,
        "next_attempt_at": at.isoformat(timespec="seconds") if at else None,
        "p50_s": [{"sizes": t.sizes, "p50_s": t.p50_s} for t in timings],
        "speed_over_fallback": speed_over_fallback(timings),
        "speed_bounds": (bounds := speed_bounds(timings)) and [bounds.low, bounds.high],
        "proof": status.engine and _proof_document(status.engine.proof),
        "nearest": nearest
        and {"digest": nearest[0].digest, "differences": [vars(d) for d in nearest[1]]},
    }


def _proof_document(proof: Proof) -> dict[str, Any]:
    return {
        "samples": proof.samples,
        "power": [check.model_dump() for check in proof.power],
    }


def _print(case: Case) -> None:
    name, version = case.version.name, case.version.version
    title = f"{name} version {version} on {case.generation}"
    console.print(f"{title}: {_serves(case)}", markup=False, soft_wrap=True)
    ranks = _ranks(case)
    in_order = sorted(case.statuses, key=lambda s: ranks.get(s.planned.digest, len(ranks) + 1))
    rows = [_row(status, case, ranks) for status in in_order]
    skipped = case.plan.skipped if case.plan else ()
    rows += [("-", s.kind, s.precision, "skipped", *["-"] * 4) for s in skipped]
    if rows or case.turn is None:
        print_table("Planned", _COLUMNS, rows)
    # Below the table: sentences in a column of it are past reading on a narrow screen.
    lines = [
        f"{s.planned.key.kind} {s.planned.key.precision}: {why}"
        for s in in_order
        if (why := _why(s, case))
    ]
    lines += [
        f"{s.planned.key.kind} {s.planned.key.precision}: {words}"
        for s in in_order
        if s.engine and (words := proof_words(s.engine.proof))
    ]
    lines += [f"{s.kind} {s.precision}: {s.reason}" for s in skipped]
    if case.decided_by:
        lines.insert(0, f"the rank is by engines {case.decided_by}")
    is_told = any(replica.fallback_refuted for replica in case.replicas or ())
    if (verdict := case.version.fallback_verdict) and not is_told:
        lines.append(verdict.words)
    if case.turn:
        lines.insert(0, f"{name} {case.turn.words}")
    for line in (*lines, *_nearest_lines(case, in_order), *_passed_over_lines(case)):
        console.print(line, markup=False, soft_wrap=True)


def _nearest_lines(case: Case, statuses: Sequence[KeyStatus]) -> list[str]:
    """For each miss, what is published and nearest to it, and in which facts that differs."""
    found = [(status, _nearest(status, case)) for status in statuses]
    return [
        f"{status.planned.words} {status.planned.digest[:_SHORT]}: "
        f"{_nearest_words(status, nearest)}"
        for status, nearest in found
        if not status.engine
    ]


def _nearest_words(
    status: KeyStatus, nearest: tuple[PublishedEngine, list[KeyDifference]] | None
) -> str:
    if nearest is None:
        return f"no {status.planned.key.kind} engine of this master was ever published"
    return f"nearest is {nearest[0].digest[:_SHORT]}: {difference_words(nearest[1])}"


def _nearest(status: KeyStatus, case: Case) -> tuple[PublishedEngine, list[KeyDifference]] | None:
    """Of its own kind alone: what another kind differs in says nothing of a miss."""
    kind = status.planned.key.kind
    same_kind = (engine for engine in case.engines if engine.manifest.key.kind is kind)
    return None if status.engine else nearest_engine(status.planned.key, same_kind)


def _passed_over_lines(case: Case) -> list[str]:
    """Engines that no plan names any more; those of other generations were never meant here."""
    planned = {status.planned.digest for status in case.statuses}
    over = {digest: each for digest, each in case.rejections.items() if digest not in planned}
    elsewhere = [d for d, each in over.items() if each.reason is _ELSEWHERE]
    lines = [
        f"engine {digest[:_SHORT]} is passed over: {rejection.detail}"
        for digest, rejection in over.items()
        if digest not in elsewhere
    ]
    if elsewhere:
        lines.append(
            f"engines for other generations: {len(elsewhere)} (smelt engines {case.version.name})"
        )
    return lines


def _row(status: KeyStatus, case: Case, ranks: dict[str, int]) -> tuple[str, ...]:
    key, timings = status.planned.key, case.timings(status.engine)
    p50s = [milliseconds(t.p50_s) for t in sorted(timings, key=lambda t: t.p50_s)]
    return (
        str(ranks.get(status.planned.digest, "-")),
        key.kind.value,
        key.precision.value,
        status.standing.value,
        " - ".join(dict.fromkeys((p50s[0], p50s[-1]))) if p50s else "-",
        times(mean_speedup(timings) if timings else None, is_wild=is_wild(timings)),
        times(speed_over_fallback(timings), is_wild=is_wild(timings)),
        status.planned.digest[:_SHORT],
    )


def _why(status: KeyStatus, case: Case) -> str:
    model, words = case.version.name, status.reason
    match status.standing:
        case Standing.PROVEN:
            return _passed_over(status, case)
        case Standing.QUARANTINED:
            words = f"given up after {status.num_failures} failures: {words}; let out by: "
            words += f"smelt rebuild {model}"
        case Standing.PROOF_FAILED:
            words += f"; proven again by: smelt rebuild {model}"
        case Standing.FAILED if status.next_attempt_at:
            at = readable_time(status.next_attempt_at.isoformat())
            words += f"; a controller tries it again from {at} on, smelt build {model} at once"
    if status.planned.digest in case.replayable:
        digest = status.planned.digest[:_SHORT]
        words += f"; its worst sample again: python -m compiler_worker replay {digest}"
    return words


def _passed_over(status: KeyStatus, case: Case) -> str:
    """Why a replica does not take it although it is there; "" when it does."""
    rejection = case.rejections.get(status.planned.digest)
    return f"passed over ({rejection.reason}): {rejection.detail}" if rejection else ""


def _ranks(case: Case) -> dict[str, int]:
    """Place of each engine that fits, from 1, as a replica tries them."""
    if case.selection is None or case.selection.engine is None:
        return {}
    fitting = (case.selection.engine, *case.selection.runners_up)
    return {engine.digest: rank for rank, engine in enumerate(fitting, start=1)}


def _serves(case: Case) -> str:
    """What serves there, or would."""
    if case.replicas:
        words = sorted({_replica_words(report) for report in case.replicas})
        num = len(case.replicas)
        return f"{'; '.join(words)} ({num} replica{'' if num == 1 else 's'})"
    asked = "no replica is attached" if case.replicas is not None else "no fleet runs here"
    if case.plan is None and case.selection is None:
        return f"{asked}; nothing is planned there yet"
    if case.selection is None:
        return f"{asked}; no such node was seen yet"
    if case.selection.engine is not None:
        key = case.selection.engine.manifest.key
        digest = case.selection.engine.digest[:_SHORT]
        return f"{asked}; one would serve with {key.kind} {key.precision} {digest}"
    return f"{asked}; one would serve with the fallback: {case.selection.fallback_reason}"


def _replica_words(report: fleet.ReplicaReport) -> str:
    if not report.engine_digest:
        why = fallback_why(report)
        with_what = f"serves with the fallback ({fallback_name(report)})"
        return f"{with_what}: {why}" if why else "is still starting"
    digest = report.engine_digest[:_SHORT]
    return f"serves with {report.engine_kind} {report.engine_precision} {digest}"
