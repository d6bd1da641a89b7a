"""What a joint run changed: which engine is best now, by how much, and in whose place. Pure.

The event of a proof is of one engine alone, in its own state of the machine, and stays as it was
recorded. Only this one compares engines.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from services.contracts.events import Event, EventKind
from services.contracts.model.manifest import ModelVersion, PublishedEngine, Timing
from services.contracts.selection.joint_order import overlaps
from services.contracts.selection.joint_run import JointRun
from services.contracts.selection.selection import (
    GATED,
    FallbackReason,
    Selection,
    mean_speedup,
    select,
)
from services.contracts.selection.speed_gate import (
    BUSY,
    SpeedVerdict,
    beside_words,
    is_wild,
    speed_bounds,
    speed_over_fallback,
    verdict,
)
from services.contracts.text.words import readable_ratio
from services.controller.build.build_view import FleetView
from services.controller.events.event_state import EventState

_SHORT = 12
_GATED_WORDS = {
    FallbackReason.SLOWER_THAN_FALLBACK: " (slower than the fallback)",
    FallbackReason.NOT_MEASURABLE: " (not measurable beside the fallback)",
}


def joint_events(state: EventState, view: FleetView) -> Iterator[Event]:
    """The newest joint run of each version and generation, where it has no event yet."""
    for version in view.versions:
        engines = view.engines_by_master.get(version.master.digest, ())
        by_generation: dict[str, list[JointRun]] = {}
        for run in view.runs.get(version.master.digest, ()):
            by_generation.setdefault(run.device.generation, []).append(run)
        for generation, runs in sorted(by_generation.items()):
            event = Event(
                kind=EventKind.ENGINES_COMPARED,
                model=version.name,
                version=version.version,
                generation=generation,
                mark=runs[-1].created_at,
            )
            last = state.last(event)
            # The mark is the run's own time: a controller that starts again records none twice.
            if last is None or last.mark != event.mark:
                found = _found(version, engines, runs)
                yield from [event.model_copy(update=found)] if found else []


def eager_words(timings: Sequence[Timing]) -> str:
    """`1.25 x eager`; "" for an engine that was not timed, or whose figures are wild."""
    is_shown = timings and not is_wild(timings)
    return f"{readable_ratio(mean_speedup(timings))} x eager" if is_shown else ""


def speed_words(timings: Sequence[Timing]) -> str:
    """`1.25 x eager, 2.10 x the fallback`, as far as they were measured."""
    bounds = speed_bounds(timings)
    beside = beside_words(speed_over_fallback(timings), bounds, "the fallback")
    return ", ".join(filter(None, (eager_words(timings), beside)))


def _found(
    version: ModelVersion, engines: Sequence[PublishedEngine], runs: Sequence[JointRun]
) -> dict[str, str]:
    """The best engine and the words of the last of one generation's runs, oldest first.

    Nothing where it decides nothing: an engine is new since, and the next run has it, or no
    engine of this one fits.
    """
    run = runs[-1]
    now = select(engines, run.device, version=version, runs=runs)
    is_decided = bool(now.joint.order) and now.joint.decided_by == run
    if not (is_decided if now.engine is not None else now.fallback_reason in GATED):
        return {}
    before = select(engines, run.device, version=version, runs=runs[:-1])
    names = _names(now, engines, run)
    words = (
        f"{_best_words(now, names, run)}{_place_words(now, before)}",
        _others_words(now, names, run),
        run.words,
    )
    key = now.engine.digest if now.engine else ""
    return {"key": key, "why": "; ".join(filter(None, words))}


def _names(now: Selection, engines: Sequence[PublishedEngine], run: JointRun) -> dict[str, str]:
    """What the best engine and those of the run are called, by digest; no two alike."""
    named = {*run.digests, now.engine.digest if now.engine else ""}
    words = {engine.digest: _words(engine) for engine in engines if engine.digest in named}
    num_alike = Counter(words.values())
    # Of one kind and precision there may be several, as of two toolchains. Without a best one the
    # fastest has its digest whatever the others are.
    return {
        digest: f"{name} {digest[:_SHORT]}" if now.engine and num_alike[name] > 1 else name
        for digest, name in words.items()
    }


def _best_words(now: Selection, names: Mapping[str, str], run: JointRun) -> str:
    if now.engine is None:
        # Sorted first: of equal ones every controller names the same.
        fastest = min(sorted(run.digests), key=run.mean_s)
        subject = f"{names.get(fastest, 'engine')} {fastest[:_SHORT]}"
        speed = speed_words(run.timings(fastest))
        if now.fallback_reason is FallbackReason.NOT_MEASURABLE:
            if is_wild(run.timings(fastest)):
                return f"{subject} is {BUSY}; it is timed again"
            return f"not measurable here now: {subject} is {speed}, and is timed again"
        return f"the fallback is best: the fastest engine, {subject}, is {speed}"
    timed = run.timings(now.engine.digest) if now.engine.digest in run.digests else ()
    speed = speed_words(timed)
    best = now.engine.digest
    close = [names[e.digest] for e in now.runners_up if overlaps(run, best, e.digest)]
    found = f"leads, too close to tell from {', '.join(close)}" if close else "is best"
    if verdict(timed) is SpeedVerdict.NOT_MEASURABLE:
        found = "stays best, although not measurable here now"
    return f"{names[best]} {found}{speed and ': '}{speed}"


def _place_words(now: Selection, before: Selection) -> str:
    """The engine that it replaces; "" when the same was best before, or nothing was."""
    if now.engine and before.engine and now.engine.digest != before.engine.digest:
        return f", in place of {_words(before.engine)} {before.engine.digest[:_SHORT]}"
    return ""


def _others_words(now: Selection, names: Mapping[str, str], run: JointRun) -> str:
    """The run's results for the others: it may correct their proofs."""
    if now.engine is None:
        return ""
    gated = {r.digest: _GATED_WORDS[r.reason] for r in now.rejections if r.reason in GATED}
    timed = [digest for digest in names if digest != now.engine.digest]
    return ", ".join(
        " ".join(filter(None, (names[digest], eager_words(run.timings(digest)))))
        + gated.get(digest, "")
        for digest in sorted(timed, key=run.mean_s)
    )


def _words(engine: PublishedEngine) -> str:
    key = engine.manifest.key
    return f"{key.kind} {key.precision}"
