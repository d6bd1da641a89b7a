"""An engine that is slower than the fallback, or may be, is published and not selected."""

from collections.abc import Callable

import pytest

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import (
    MasterRecord,
    ModelVersion,
    Proof,
    PublishedEngine,
    SideTiming,
    Timing,
)
from services.contracts.model.recipe import Recipe
from services.contracts.ratio import Ratio
from services.contracts.selection.selection import FallbackReason, select
from services.contracts.selection.speed_gate import (
    SpeedBounds,
    SpeedVerdict,
    beside_words,
    deciding,
    is_settled,
    rejection_reason,
    speed_over_fallback,
    verdict,
)
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
        bucket="b",
        sizes={"batch": batch},
        p50_s=engine_s,
        p95_s=engine_s,
        throughput=batch / engine_s,
        eager_p50_s=100.0,
        fallback=fallback or None,
    )


def paired(low: float, high: float, noise: float = 1.0) -> Timing:
    """An engine's interval beside the fallback, and by how much that gains on itself."""
    plain = timing(1, 1.0, 1.0)
    assert plain.fallback
    itself = Ratio(median=1.0, low=1 / noise, high=noise, num_pairs=20)
    median = (low * high) ** 0.5
    return plain.model_copy(
        update={
            "ratio": Ratio(median=median, low=low, high=high, num_pairs=20),
            "fallback": plain.fallback.model_copy(update={"ratio": itself}),
        }
    )


SLOWER = paired(0.7, 0.8)
FASTER = paired(1.2, 1.3)
UNKNOWN = paired(0.8, 1.5)
WILD = paired(1.4, 40.0)
OLD_SLOWER = timing(1, 1.0, 0.79)


def version(*, must_beat_fallback: bool) -> ModelVersion:
    master = MasterRecord(
        digest="a" * 64, files={}, inputs=(ROWS,), outputs=(), opset=20, num_parameters=1
    )
    return ModelVersion(
        name="m",
        version=1,
        master=master,
        source="m.onnx",
        source_fingerprint="f",
        recipe=Recipe(precisions=(Precision.FP16,), must_beat_fallback=must_beat_fallback),
        created_at="2026-01-01T00:00:00+00:00",
    )


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
    assert bool(rejection_reason(engine.proof.timings)) is not may_serve


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
    written = make_proof(timings=(old,)).canonical_json()
    assert b"fallback" not in written
    assert b'"ratio"' not in written
    new = paired(1.0, 2.0)
    assert Timing.from_json(new.canonical_json()) == new


@pytest.mark.parametrize(
    ("timings", "found"),
    [
        ([FASTER], SpeedVerdict.KEEPS_UP),
        ([paired(0.97, 1.03)], SpeedVerdict.KEEPS_UP),  # equal, and known to be
        ([SLOWER], SpeedVerdict.SLOWER),
        ([UNKNOWN], SpeedVerdict.NOT_MEASURABLE),
        ([paired(0.97, 1.3, noise=1.04)], SpeedVerdict.NOT_MEASURABLE),
        ([paired(0.7, 0.93, noise=1.04)], SpeedVerdict.NOT_MEASURABLE),
        # Pairs lie closer together than the baseline's calls: that a load changed is in theirs.
        ([paired(1.2, 1.3, noise=1.4)], SpeedVerdict.KEEPS_UP),
        ([paired(0.7, 0.8, noise=1.4)], SpeedVerdict.SLOWER),
        ([paired(1.1, 40.0)], SpeedVerdict.NOT_MEASURABLE),  # wild, and not clearly faster
        ([paired(1.4, 40.0)], SpeedVerdict.KEEPS_UP),
        ([paired(0.02, 0.8)], SpeedVerdict.SLOWER),
        ([FASTER, UNKNOWN, FASTER], SpeedVerdict.KEEPS_UP),  # the mean of all shapes
        ([timing(1, 1.0, None)], None),
        ([OLD_SLOWER], SpeedVerdict.SLOWER),  # older records have no interval
    ],
)
def test_a_verdict_needs_an_interval_without_doubt(
    timings: list[Timing], found: SpeedVerdict | None
) -> None:
    assert verdict(timings) is found
    assert bool(rejection_reason(timings)) is (
        found in (SpeedVerdict.SLOWER, SpeedVerdict.NOT_MEASURABLE)
    )


def test_what_cannot_be_measured_says_so_and_is_no_verdict_for_ever() -> None:
    assert rejection_reason([UNKNOWN]) == (
        "not measurable here now: 0.80 to 1.50 x the fallback's speed, too close to tell; what "
        "serves now stays, and the fleet times them again later; at once: smelt build MODEL"
    )
    # The ends of an interval that wide would be read as two speeds.
    assert rejection_reason([paired(0.0069, 1854.0)], model="m") == (
        "not measurable while this machine is busy: calls differed too much to say whether it or "
        "the fallback is faster; what serves now stays, and the fleet times them again later; at "
        "once, when less runs here: smelt build m"
    )
    assert "faster (0.30 to 2.40 times its speed); what" in rejection_reason([paired(0.3, 2.4)])
    assert rejection_reason([SLOWER]).startswith(
        "slower than the fallback: 0.75 x its speed (0.70 to"
    )
    assert rejection_reason([paired(0.02, 0.8)]).startswith(
        "slower than the fallback: at most 0.80 x its speed, so"
    )


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (SpeedBounds(low=1.2, high=1.3), "1.25 x it (1.20 to 1.30)"),
        (SpeedBounds(low=1.2, high=4.8), "at least 1.20 x it"),
        (SpeedBounds(low=0.01, high=0.9), "at most 0.90 x it"),
        (SpeedBounds(low=0.0069, high=1854.0), ""),
        (None, "1.25 x it"),
    ],
)
def test_of_an_interval_that_is_wild_only_a_sure_end_is_said(
    bounds: SpeedBounds | None, words: str
) -> None:
    assert beside_words(1.25, bounds, "it") == words
    assert beside_words(None, bounds, "it") == ""


@pytest.mark.parametrize(
    ("history", "counts", "settled"),
    [
        ([[FASTER], [UNKNOWN]], FASTER, True),  # it keeps its place
        ([[UNKNOWN], [SLOWER], [UNKNOWN]], SLOWER, True),
        ([[SLOWER], [FASTER]], FASTER, True),
        ([[UNKNOWN], [UNKNOWN]], UNKNOWN, False),
        ([[OLD_SLOWER]], OLD_SLOWER, False),  # decided by one figure: timed again, as it serves
        ([[OLD_SLOWER], [UNKNOWN]], OLD_SLOWER, False),
        ([[OLD_SLOWER], [FASTER]], FASTER, True),
        ([[FASTER], [timing(1, 1.0, None)]], FASTER, True),
        ([[timing(1, 1.0, None)]], timing(1, 1.0, None), True),
        ([[WILD]], WILD, False),  # it serves, and has no place among others
        ([[WILD], [FASTER]], FASTER, True),
    ],
)
def test_the_newest_run_without_doubt_counts(
    history: list[list[Timing]], counts: Timing, settled: bool
) -> None:
    assert deciding(history) == [counts]
    assert is_settled(history) is settled
    assert deciding([()]) == ()


def test_the_fallback_serves_where_nothing_was_ever_measured(
    make_engine: MakeEngine, make_proof: MakeProof, make_device: MakeDevice
) -> None:
    engine = make_engine(make_proof(timings=(UNKNOWN,)))
    selection = select([engine], make_device())
    assert selection.engine is None
    assert selection.fallback_reason is FallbackReason.NOT_MEASURABLE
    assert select([engine], make_device(), serving=engine.digest).engine == engine
    slow = make_engine(make_proof(timings=(SLOWER,)))
    assert select([slow], make_device(), serving=slow.digest).engine is None
