"""The event of a joint run: who is best, by how much, in whose place; recorded once."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from services.contracts.events import Event
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import ModelVersion, ProofOutcome, SideTiming, Timing
from services.contracts.model.recipe import Recipe
from services.contracts.ratio import Ratio
from services.contracts.registry.event_log import EventRegistry
from services.contracts.selection.joint_run import JointRun, JointTiming
from services.contracts.selection.speed_gate import rejection_reason
from services.contracts.store.object_store import open_store
from services.contracts.terms import proof_terms
from services.controller.build.build_view import FleetView
from services.controller.events.event_recorder import EventRecorder
from tests.unit.services.controller import build_world as world

TERMS = proof_terms(Recipe(), world.key().precision, None)
ORT, OPENVINO = (
    world.key(kind, proof_terms=TERMS) for kind in (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO)
)
A, B = ORT.digest(), OPENVINO.digest()
FIRST, SECOND = "2026-01-02T03:04:05.000+00:00", "2026-01-03T03:04:05.000+00:00"


@pytest.fixture
def registry(tmp_path: Path) -> EventRegistry:
    return EventRegistry(open_store(str(tmp_path / "store")))


def side(p50_s: float) -> SideTiming:
    return SideTiming(p50_s=p50_s, p95_s=p50_s, throughput=1 / p50_s, peak_memory_bytes=1)


def run(
    engines_s: Mapping[str, float], created_at: str = FIRST, fallback_s: float = 4.0
) -> JointRun:
    shape = JointTiming(
        bucket="b",
        sizes={},
        eager=side(6.0),
        fallback=side(fallback_s),
        engines={digest: side(p50_s) for digest, p50_s in engines_s.items()},
    )
    return JointRun(
        master_digest=world.MASTER.digest,
        device=world.DEVICE,
        shapes=(shape,),
        created_at=created_at,
    )


def paired(
    low: float, high: float, created_at: str = FIRST, digests: tuple[str, ...] = (A, B)
) -> JointRun:
    """A run of both that found the same of each: so many times the fallback's speed."""
    found = Ratio(median=(low * high) ** 0.5, low=low, high=high, num_pairs=20)
    plain = run(dict.fromkeys(digests, 3.0), created_at)
    (shape,) = plain.shapes
    engines = {d: side(3.0).model_copy(update={"ratio": found}) for d in shape.engines}
    return plain.model_copy(update={"shapes": (shape.model_copy(update={"engines": engines}),)})


def proven(p50_s: float) -> tuple[Timing, ...]:
    return (Timing(bucket="b", sizes={}, p50_s=p50_s, p95_s=9, throughput=1, eager_p50_s=6.0),)


def view(*runs: JointRun, versions: tuple[ModelVersion, ...] = (world.version(),)) -> FleetView:
    """By their proofs ORT is the faster one."""
    engines = [
        world.engine(ORT, world.proof(timings=proven(2.0))),
        world.engine(OPENVINO, world.proof(timings=proven(3.0))),
    ]
    return FleetView(
        pools=(world.pool(),),
        versions=versions,
        engines={engine.digest: engine for engine in engines},
        runs={world.MASTER.digest: runs},
    )


def compared(registry: EventRegistry, *seen: FleetView) -> list[Event]:
    """What the recorder says of joint runs after these views, each seen by two controllers."""
    recorder = EventRecorder(registry)
    for each in seen:
        recorder.observe(each)
        EventRecorder(registry).observe(each)
    found = [event for _, event in registry.last_events(100)]
    return [event for event in found if event.kind == "engines_compared"]


def test_each_run_says_who_is_best_and_who_was(registry: EventRegistry) -> None:
    first = run({A: 3.0, B: 2.0})
    second = run({A: 1.0, B: 2.0}, SECOND)
    events = compared(registry, view(), view(first), view(first, second))
    assert [(event.key, event.mark) for event in events] == [(B, FIRST), (A, SECOND)]
    assert events[0].why == (
        f"openvino fp32 is best: 3.00 x eager, 2.00 x the fallback, in place of onnxruntime fp32 "
        f"{A[:12]}; onnxruntime fp32 2.00 x eager; timed together on 2026-01-02 03:04:05Z, "
        "2 candidates"
    )
    assert events[1].why.startswith("onnxruntime fp32 is best: 6.00 x eager, 4.00 x the fallback")
    assert f"in place of openvino fp32 {B[:12]}; openvino fp32 3.00 x eager; " in events[1].why


def test_one_that_stays_best_took_nobodys_place(registry: EventRegistry) -> None:
    [event] = compared(registry, view(run({A: 1.0, B: 2.0})))
    assert "in place of" not in event.why
    # The run was before the recorder knew of the model: it did not follow from that.
    assert event.seconds_since_change is None


def test_one_that_the_run_found_too_slow_has_its_event_as_such(registry: EventRegistry) -> None:
    [event] = compared(registry, view(run({A: 1.0, B: 50.0})))
    assert "; openvino fp32 0.12 x eager (slower than the fallback); timed together" in event.why


def test_where_the_fallback_is_best_it_says_so(registry: EventRegistry) -> None:
    [event] = compared(registry, view(run({A: 1000.0, B: 2000.0})))
    assert event.key == ""
    assert event.why.startswith(
        f"the fallback is best: the fastest engine, onnxruntime fp32 {A[:12]}, is 0.006 x eager, "
    )


def test_where_nothing_can_be_measured_it_says_so_and_nobody_is_best(
    registry: EventRegistry,
) -> None:
    unclear, better = paired(0.8, 1.5), paired(1.2, 1.3, SECOND)
    first, second = compared(registry, view(unclear), view(unclear, better))
    name = "onnxruntime fp32" if min(A, B) == A else "openvino fp32"
    assert first.why.startswith(
        f"not measurable here now: {name} {min(A, B)[:12]} is 2.00 x eager, 1.10"
    )
    assert "x the fallback (0.80 to 1.50), and is timed again; timed together on" in first.why
    assert first.key == ""
    assert " leads, too close to tell from " in second.why
    assert " fp32: 2.00 x eager, 1.25 x the fallback (1.20 to 1.30); " in second.why


def test_one_that_was_best_stays_so_where_nothing_can_be_measured(registry: EventRegistry) -> None:
    clear, unclear = paired(1.2, 1.3), paired(0.8, 1.5, SECOND)
    first, second = compared(registry, view(clear), view(clear, unclear))
    assert second.key == first.key
    assert " stays best, although not measurable here now: " in second.why


def test_where_the_machine_is_busy_no_interval_is_told(registry: EventRegistry) -> None:
    [event] = compared(registry, view(paired(0.0069, 1854.0)))
    name = "onnxruntime fp32" if min(A, B) == A else "openvino fp32"
    assert event.why.startswith(
        f"{name} {min(A, B)[:12]} is not measurable while this machine is busy: "
    )
    assert "1854" not in event.why


def test_wild_figures_of_others_are_not_recorded(registry: EventRegistry) -> None:
    clear, shape = paired(1.2, 1.3), paired(0.1, 40.0).shapes[0]
    engines = {**clear.shapes[0].engines, B: shape.engines[B]}
    mixed = clear.shapes[0].model_copy(update={"engines": engines})
    [event] = compared(registry, view(clear.model_copy(update={"shapes": (mixed,)})))
    assert "onnxruntime fp32 is best: 2.00 x eager" in event.why
    assert "; openvino fp32 (not measurable beside the fallback); " in event.why


def test_two_of_one_kind_and_precision_are_told_apart(registry: EventRegistry) -> None:
    other = world.key(OPENVINO.kind, proof_terms=TERMS, builder_options={"code": "older"})
    engine = world.engine(other, world.proof(timings=proven(3.0)))
    c = engine.digest
    runs = [paired(1.2, 1.3, digests=(B, c)), run({A: 3.0, B: 2.0, c: 1.0}, SECOND)]
    plain = view()
    engines = {B: plain.engines[B], c: engine}
    close = replace(plain, engines=engines, runs={world.MASTER.digest: runs[:1]})
    clear = replace(plain, engines=plain.engines | engines, runs={world.MASTER.digest: runs})
    first, second = compared(registry, close, clear)
    best, near = (B, c) if first.key == B else (c, B)
    leads = f"openvino fp32 {best[:12]} leads, too close to tell from openvino fp32 {near[:12]}: "
    assert first.why.startswith(leads)
    assert second.why.startswith(f"openvino fp32 {c[:12]} is best: 6.00 x eager, ")
    # The only one of its kind needs no digest.
    assert f"; openvino fp32 {B[:12]} 3.00 x eager, onnxruntime fp32 2.00 x eager; " in second.why


def test_a_run_that_lacks_a_newer_engine_waits_for_the_next_one(registry: EventRegistry) -> None:
    assert compared(registry, view(run({A: 1.0}))) == []


@pytest.mark.parametrize(
    ("timings", "words"),
    [
        ((), "onnxruntime fp32: not timed"),
        (proven(3000.0), "onnxruntime fp32: 0.002 x eager"),
        (proven(2.0), "onnxruntime fp32: 3.00 x eager"),
        (
            world.paired(0.25, 99.0),
            f"onnxruntime fp32: {rejection_reason(world.paired(0.25, 99.0), model='m')}",
        ),
    ],
)
def test_a_proof_prints_no_ratio_that_was_not_measured_or_is_nothing(
    registry: EventRegistry, timings: tuple[Timing, ...], words: str
) -> None:
    engine = world.engine(ORT, world.proof(ProofOutcome.PASSED, timings=timings))
    seen = FleetView(versions=(world.version(),), engines={engine.digest: engine})
    EventRecorder(registry).observe(seen)
    assert registry.last_events(1)[0][1].why == words
