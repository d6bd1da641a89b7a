"""Which engine a replica serves: one pure function over published engines and device facts.

No engine is chosen in silence and none is skipped in silence: the answer carries the
reason for every engine that was passed over, and for the fallback when nothing fits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import geometric_mean
from types import MappingProxyType

from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import DeviceFacts, Generation
from services.contracts.model.manifest import ModelVersion, ProofOutcome, PublishedEngine, Timing
from services.contracts.model.precisions import admitted_precisions
from services.contracts.selection.joint_order import JointOrder, engine_history, joint_order
from services.contracts.selection.joint_run import JointRun
from services.contracts.selection.speed_gate import (
    SpeedVerdict,
    deciding,
    is_wild,
    rejection_reason,
    verdict,
)
from services.contracts.terms import calibration_digest, proof_terms

# Sizes by dimension, sorted by name.
_Shape = tuple[tuple[str, int], ...]


class FallbackReason(StrEnum):
    """Why a replica serves on the fallback; a label of a metric, so a closed set."""

    NO_ENGINE = "no_engine"
    NO_ENGINE_FOR_GENERATION = "no_engine_for_generation"
    OTHER_RECIPE = "other_recipe"
    TOOLCHAIN_MISMATCH = "toolchain_mismatch"
    NOT_PROVEN = "not_proven"
    NOT_TRUSTED = "not_trusted"
    NOT_MEASURABLE = "not_measurable"
    SLOWER_THAN_FALLBACK = "slower_than_fallback"
    LOAD_FAILED = "load_failed"

    @property
    def words(self) -> str:
        """For people, who read this; programs and metrics have the value."""
        return _REASON_WORDS[self]


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """Why one engine was passed over."""

    digest: str
    reason: FallbackReason
    detail: str


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The engine to serve, or the reason for the fallback.

    Attributes:
        engine: None means fallback.
        runners_up: engines that fit too, best first; tried when the chosen one fails to load.
        fallback_reason: None exactly when an engine was found.
        rejections: one for every engine that does not fit.
        joint: the order that was measured in joint runs, if one was.
    """

    engine: PublishedEngine | None
    runners_up: tuple[PublishedEngine, ...]
    fallback_reason: FallbackReason | None
    rejections: tuple[Rejection, ...]
    joint: JointOrder = field(default_factory=JointOrder)


# How far an engine got before it was passed over; the farthest explains the fallback best.
_PROGRESS = (
    FallbackReason.NO_ENGINE,
    FallbackReason.NO_ENGINE_FOR_GENERATION,
    FallbackReason.OTHER_RECIPE,
    FallbackReason.TOOLCHAIN_MISMATCH,
    FallbackReason.NOT_PROVEN,
    FallbackReason.NOT_TRUSTED,
    FallbackReason.SLOWER_THAN_FALLBACK,
    FallbackReason.NOT_MEASURABLE,
    FallbackReason.LOAD_FAILED,
)
_REASON_WORDS: Mapping[FallbackReason, str] = {
    FallbackReason.NO_ENGINE: "no proven engine of this model is published",
    FallbackReason.NO_ENGINE_FOR_GENERATION: "no engine is published for this generation",
    FallbackReason.OTHER_RECIPE: "no engine is published for its recipe",
    FallbackReason.TOOLCHAIN_MISMATCH: "its engines need other drivers or libraries",
    FallbackReason.NOT_PROVEN: "none of its engines has passed a proof here",
    FallbackReason.NOT_TRUSTED: "none of its engines has a trusted signature",
    FallbackReason.NOT_MEASURABLE: "whether an engine is faster could not be measured",
    FallbackReason.SLOWER_THAN_FALLBACK: "no engine is faster",
    FallbackReason.LOAD_FAILED: "none of its engines could be loaded",
}
# Of engines that fit: the benchmark's gate alone keeps them from serving.
GATED = (FallbackReason.SLOWER_THAN_FALLBACK, FallbackReason.NOT_MEASURABLE)


def reason_words(code: str) -> str:
    """A replica's fallback reason for people; that of another release stays as it is."""
    known = {reason.value: reason.words for reason in FallbackReason}
    return known.get(code, code)


def select(
    engines: Iterable[PublishedEngine],
    device: DeviceFacts,
    *,
    version: ModelVersion | None = None,
    failed_digests: frozenset[str] = frozenset(),
    untrusted: Mapping[str, str] = MappingProxyType({}),
    runs: Sequence[JointRun] = (),
    serving: str = "",
) -> Selection:
    """Choose the fastest proven engine that this device can load and that beats the fallback.

    An engine that could not be distinguished from the fallback when it was timed last keeps its
    place, if an earlier run gave it one or it serves now, and gets none otherwise.

    Args:
        engines: all of one master, whatever recipe they were built for.
        device: that will run the engine.
        version: whose recipe the engine must have been built and proven for; None asks for
            none.
        failed_digests: engines that failed to load on this device before.
        untrusted: why engines lack a trusted signature, by digest (`Registry.untrusted`).
        runs: joint runs of the master that are trusted (`Registry.joint_runs`).
        serving: digest of the engine that serves now; "" for the fallback, or for nothing.
    """
    fitting: list[PublishedEngine] = []
    rejections: list[Rejection] = []
    for engine in engines:
        rejection = _reject(engine, device, version, failed_digests, untrusted, runs, serving)
        if rejection is None:
            fitting.append(engine)
        else:
            rejections.append(rejection)
    # Exact device facts count more than speed: sorting keeps the order of equals.
    joint = joint_order_of(fitting, device.generation, runs)
    fitting = sorted(fastest_first(fitting, joint), key=lambda engine: _inexactness(engine, device))
    reason = None if fitting else _best_explanation(rejections)
    return Selection(
        engine=fitting[0] if fitting else None,
        runners_up=tuple(fitting[1:]),
        fallback_reason=reason,
        rejections=tuple(rejections),
        joint=joint,
    )


def joint_order_of(
    engines: Iterable[PublishedEngine], generation: str, runs: Sequence[JointRun]
) -> JointOrder:
    """The order of engines by their joint runs; `joint_order` has the method.

    Args:
        engines: those without timings are left out.
        generation: of the device.
        runs: of any engines of that generation.
    """
    timed = (engine.digest for engine in engines if engine.proof.timings)
    return joint_order(timed, generation, runs)


def fastest_first(
    engines: Iterable[PublishedEngine], joint: JointOrder | None = None
) -> list[PublishedEngine]:
    """Engines in the order of their joint runs; without one that has all, by their proofs.

    Then it is by their latency at the shapes at which all of them were timed. The speed-up over
    eager decides only where there is no such shape: each proof measures an eager of its own,
    which another load of the machine slows more than the engine. Engines whose figures are wild
    come after those, and engines that were never timed last.
    """
    known = list(engines)
    if joint is not None and joint.order:
        places = {digest: place for place, digest in enumerate(joint.order)}
        return sorted(known, key=lambda e: (places.get(e.digest, len(places)), e.digest))
    shapes = _shared_shapes(known)
    return sorted(known, key=lambda engine: _slowness(engine, shapes))


def mean_speedup(timings: Sequence[Timing]) -> float:
    """Geometric mean over the timed shapes of engine against eager; 0 when never timed."""
    speedups = [timing.speedup for timing in timings]
    return geometric_mean(speedups) if speedups else 0.0


def gate_reason(timings: Sequence[Timing]) -> FallbackReason:
    """The kind of a gate's fault."""
    is_slower = verdict(timings) is SpeedVerdict.SLOWER
    return FallbackReason.SLOWER_THAN_FALLBACK if is_slower else FallbackReason.NOT_MEASURABLE


def recipe_fault(engine: PublishedEngine, version: ModelVersion) -> str:
    """Why an engine is not for a version's recipe; "" when it is.

    Engines of one master serve every version that has it, but only on that version's terms.
    """
    key = engine.manifest.key
    recipe = version.recipe
    precisions = admitted_precisions(recipe, has_calibration=version.calibration is not None)
    if key.kind not in recipe.kinds:
        return f"kind {key.kind}, the recipe asks for {', '.join(recipe.kinds)}"
    if key.precision not in precisions:
        return f"precision {key.precision}, the recipe asks for {', '.join(precisions)}"
    if version.buckets != key.buckets:
        found, wanted = (
            ", ".join(bucket.label for bucket in buckets)
            for buckets in (key.buckets, version.buckets)
        )
        by_default = "" if recipe.buckets else " by default"
        return f"built for buckets {found}, the recipe asks for {wanted}{by_default}"
    if key.calibration_digest != calibration_digest(version, key.precision):
        return (
            f"calibrated with other samples; build it for version {version.version}: "
            f"smelt build {version.name}"
        )
    if key.proof_terms != proof_terms(recipe, key.precision, version.samples):
        return (
            f"proven for another recipe; build it for version {version.version}: "
            f"smelt build {version.name}"
        )
    return ""


def _reject(
    engine: PublishedEngine,
    device: DeviceFacts,
    version: ModelVersion | None,
    failed_digests: frozenset[str],
    untrusted: Mapping[str, str],
    runs: Sequence[JointRun],
    serving: str,
) -> Rejection | None:
    timings = deciding(engine_history(engine, device.generation, runs))
    gated = gate_reason(timings)
    keeps_place = gated is FallbackReason.NOT_MEASURABLE and engine.digest == serving
    asked = (version.recipe, version.name) if version else ()
    gate_words = "" if keeps_place else rejection_reason(timings, *asked)
    checks = (
        (FallbackReason.NO_ENGINE_FOR_GENERATION, _generation_fault(engine, device)),
        (FallbackReason.OTHER_RECIPE, recipe_fault(engine, version) if version else ""),
        (FallbackReason.TOOLCHAIN_MISMATCH, _toolchain_fault(engine, device)),
        (FallbackReason.NOT_PROVEN, _proof_fault(engine, device)),
        (FallbackReason.NOT_TRUSTED, untrusted.get(engine.digest, "")),
        (gated, gate_words),
        (
            FallbackReason.LOAD_FAILED,
            "failed to load on this device" if engine.digest in failed_digests else "",
        ),
    )
    for reason, detail in checks:
        if detail:
            return Rejection(digest=engine.digest, reason=reason, detail=detail)
    return None


def _generation_fault(engine: PublishedEngine, device: DeviceFacts) -> str:
    built_for = engine.manifest.key.generation
    if _runs_on(built_for, device):
        return ""
    return f"built for {built_for}, this device is {device.generation}"


def _runs_on(generation: str, device: DeviceFacts) -> bool:
    try:
        return Generation.parse(generation).runs_on(device.parsed_generation)
    except InvalidRequestError:
        # A newer Smelt knows more generations; its engines must not stop this process.
        return False


def _toolchain_fault(engine: PublishedEngine, device: DeviceFacts) -> str:
    faults = [
        f"{library} {wanted} wanted, {device.toolchain.get(library, 'none')} found"
        for library, wanted in sorted(engine.manifest.key.toolchain.items())
        if device.toolchain.get(library) != wanted
    ]
    return "; ".join(faults)


def _proof_fault(engine: PublishedEngine, device: DeviceFacts) -> str:
    proof = engine.proof
    if proof.outcome is not ProofOutcome.PASSED:
        return f"proof {proof.outcome.value}: {proof.reason}"
    # An engine of a lower CPU class runs here, but its numbers were proven on another.
    proven_on = proof.device.generation if proof.device else "no device"
    return (
        "" if _runs_on(proven_on, device) else f"proven on {proven_on}, not on {device.generation}"
    )


def _shared_shapes(engines: Sequence[PublishedEngine]) -> frozenset[_Shape]:
    """The shapes at which every timed engine was timed."""
    timed = [frozenset(_latencies_s(engine)) for engine in engines if engine.proof.timings]
    return frozenset.intersection(*timed) if timed else frozenset()


def _latencies_s(engine: PublishedEngine) -> Mapping[_Shape, float]:
    """Seconds per call by shape."""
    return {tuple(sorted(t.sizes.items())): t.p50_s for t in engine.proof.timings}


def _slowness(
    engine: PublishedEngine, shapes: frozenset[_Shape]
) -> tuple[bool, bool, float, float, str]:
    """Sort key, smaller is faster; of equals the smaller digest comes first."""
    latencies_s = _latencies_s(engine)
    timings = engine.proof.timings
    common_s = [latencies_s[shape] for shape in shapes if shape in latencies_s]
    mean_s = geometric_mean(common_s) if common_s else 0.0
    return (not latencies_s, is_wild(timings), mean_s, -mean_speedup(timings), engine.digest)


def _inexactness(engine: PublishedEngine, device: DeviceFacts) -> int:
    """How far a device's facts are from those that an engine was built for; 0 is exact."""
    key = engine.manifest.key
    # The weights put the facts in order: a wrong generation outweighs a wrong name, and so on.
    return (
        8 * (key.generation != device.generation)
        + 4 * (key.device_name not in ("", device.name))
        + 2 * (key.device_memory_gib not in (0, device.memory_gib))
        + (key.driver not in ("", device.driver))
    )


def _best_explanation(rejections: list[Rejection]) -> FallbackReason:
    reasons = [rejection.reason for rejection in rejections]
    return max(reasons, key=_PROGRESS.index, default=FallbackReason.NO_ENGINE)
