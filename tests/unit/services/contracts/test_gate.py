"""An engine that is slower than the fallback is published, never selected, and says so."""

from collections.abc import Callable

import pytest

from services.contracts.gate import gate_fault, speed_over_fallback
from services.contracts.hardware import DeviceFacts
from services.contracts.kinds import EngineKind, Precision
from services.contracts.manifest import (
    MasterRecord,
    ModelVersion,
    Proof,
    PublishedEngine,
    SideTiming,
    Timing,
)
from services.contracts.recipe import Recipe
from services.contracts.selection import FallbackReason, select
from services.contracts.tensors import TensorSpec
from services.contracts.terms import proof_terms

MakeEngine = Callable[..., PublishedEngine]
MakeDevice = Callable[..., DeviceFacts]
MakeProof = Callable[..., Proof]

ROWS = TensorSpec(name="x", datatype="FP32", shape=("batch", 3))
OLD_TIMING = (
    b'{"bucket":"b","eager_p50_s":2.0,"p50_s":1.0,"p95_s":1.0,"sizes":{"batch":8},"throughput":8.0}'
)


def timing(batch: int, engine_s: float, fallback_s: float | None) -> Timing:
    """Injected figures: the decision depends on nothing else."""
    fallback = fallback_s and SideTiming(
        p50_s=fallback_s, p95_s=fallback_s, throughput=batch / fallback_s, peak_memory_bytes=1
    )
    return Timing(
        bucket="b", sizes={"batch": batch}, p50_s=engine_s, p95_s=engine_s,
        throughput=batch / engine_s, eager_p50_s=100.0, fallback=fallback or None,
    )  # fmt: skip


def version(*, must_beat_fallback: bool) -> ModelVersion:
    master = MasterRecord(
        digest="a" * 64, files={}, inputs=(ROWS,), outputs=(), opset=20, num_parameters=1
    )
    return ModelVersion(
        name="m", version=1, master=master, source="m.onnx", source_fingerprint="f",
        recipe=Recipe(precisions=(Precision.FP16,), must_beat_fallback=must_beat_fallback),
        created_at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip


# seconds of engine and fallback at each shape, and whether the engine may serve
SPEEDS = [
    ([(1.0, 2.0)], True),
    ([(2.0, 1.0)], False),
    ([(1.0, 0.97)], True),  # equal within what two runs of one code differ
    ([(1.0, 0.90)], False),
    ([(1.0, 4.0), (2.0, 1.0)], True),  # 4 x at one shape outweighs half at another
    ([(1.0, 1.5), (2.0, 1.0)], False),
    ([(2.0, None)], True),  # not timed: nothing is held against it
    ([(2.0, None), (1.0, 0.5)], False),
    ([], True),
]


@pytest.mark.parametrize(("speeds", "may_serve"), SPEEDS)
def test_an_engine_must_beat_the_fallback(
    make_engine: MakeEngine,
    make_proof: MakeProof,
    make_device: MakeDevice,
    speeds: list[tuple[float, float | None]],
    may_serve: bool,
) -> None:
    timings = tuple(timing(batch, *each) for batch, each in enumerate(speeds, start=1))
    engine = make_engine(make_proof(timings=timings))
    selection = select([engine], make_device())
    assert (selection.engine is not None) is may_serve
    assert (selection.fallback_reason is FallbackReason.SLOWER_THAN_FALLBACK) is not may_serve
    assert bool(gate_fault(engine.proof.timings)) is not may_serve


def test_the_faster_engine_serves_and_the_slow_one_says_by_how_much(
    make_engine: MakeEngine, make_proof: MakeProof, make_device: MakeDevice
) -> None:
    slow = make_engine(make_proof(timings=(timing(1, 4.0, 1.0),)))
    fast = make_engine(make_proof(timings=(timing(1, 0.5, 1.0),)), kind=EngineKind.INDUCTOR)
    selection = select([slow, fast], make_device())
    assert (selection.engine, selection.runners_up) == (fast, ())
    (rejection,) = selection.rejections
    assert rejection.digest == slow.digest
    assert rejection.detail.startswith("slower than the fallback: 0.25 x its speed")
    assert speed_over_fallback(fast.proof.timings) == 2.0


@pytest.mark.parametrize("must_beat_fallback", [True, False])
def test_the_recipe_may_switch_the_gate_off(
    make_engine: MakeEngine,
    make_proof: MakeProof,
    make_device: MakeDevice,
    must_beat_fallback: bool,
) -> None:
    asked = version(must_beat_fallback=must_beat_fallback)
    terms = proof_terms(asked.recipe, Precision.FP16, None)
    slow = make_engine(make_proof(timings=(timing(1, 2.0, 1.0),)), proof_terms=terms)
    selection = select([slow], make_device(), version=asked)
    assert (selection.engine is None) is must_beat_fallback


def test_a_slow_engine_that_is_not_trusted_is_told_to_be_that(
    make_engine: MakeEngine, make_proof: MakeProof, make_device: MakeDevice
) -> None:
    """Figures of a proof that nobody signed say nothing."""
    slow = make_engine(make_proof(timings=(timing(1, 2.0, 1.0),)))
    selection = select([slow], make_device(), untrusted={slow.digest: "not signed"})
    assert selection.fallback_reason is FallbackReason.NOT_TRUSTED


def test_older_proofs_keep_their_bytes(make_proof: MakeProof) -> None:
    """Signatures cover them."""
    old = Timing.from_json(OLD_TIMING)
    assert old.canonical_json() == OLD_TIMING
    assert b"fallback" not in make_proof(timings=(old,)).canonical_json()
    new = timing(1, 1.0, 2.0)
    assert Timing.from_json(new.canonical_json()) == new
