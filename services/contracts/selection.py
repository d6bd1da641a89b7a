"""Which engine a replica serves: one pure function over published engines and device facts.

No engine is chosen in silence and none is skipped in silence: the answer carries the
reason for every engine that was passed over, and for the fallback when nothing fits.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from statistics import geometric_mean

from services.contracts.hardware import DeviceFacts, Generation
from services.contracts.manifest import ProofOutcome, PublishedEngine


class FallbackReason(StrEnum):
    """Why a replica serves on the fallback; a label of a metric, so a closed set."""

    NO_ENGINE = "no_engine"
    NO_ENGINE_FOR_GENERATION = "no_engine_for_generation"
    TOOLCHAIN_MISMATCH = "toolchain_mismatch"
    NOT_PROVEN = "not_proven"
    LOAD_FAILED = "load_failed"


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
    """

    engine: PublishedEngine | None
    runners_up: tuple[PublishedEngine, ...]
    fallback_reason: FallbackReason | None
    rejections: tuple[Rejection, ...]


# How far an engine got before it was passed over; the farthest explains the fallback best.
_PROGRESS = (
    FallbackReason.NO_ENGINE,
    FallbackReason.NO_ENGINE_FOR_GENERATION,
    FallbackReason.TOOLCHAIN_MISMATCH,
    FallbackReason.NOT_PROVEN,
    FallbackReason.LOAD_FAILED,
)


def select(
    engines: Iterable[PublishedEngine],
    device: DeviceFacts,
    *,
    failed_digests: frozenset[str] = frozenset(),
) -> Selection:
    """Choose the fastest proven engine that this device can load.

    `failed_digests` are engines that failed to load on this device before.
    """
    fitting: list[PublishedEngine] = []
    rejections: list[Rejection] = []
    for engine in engines:
        rejection = _reject(engine, device, failed_digests)
        if rejection is None:
            fitting.append(engine)
        else:
            rejections.append(rejection)
    fitting.sort(key=lambda engine: _rank(engine, device))
    reason = None if fitting else _best_explanation(rejections)
    return Selection(
        engine=fitting[0] if fitting else None,
        runners_up=tuple(fitting[1:]),
        fallback_reason=reason,
        rejections=tuple(rejections),
    )


def mean_speedup(engine: PublishedEngine) -> float:
    """Geometric mean over the timed shapes of engine against eager; 0 when never timed."""
    speedups = [timing.speedup for timing in engine.proof.timings]
    return geometric_mean(speedups) if speedups else 0.0


def _reject(
    engine: PublishedEngine, device: DeviceFacts, failed_digests: frozenset[str]
) -> Rejection | None:
    checks = (
        (FallbackReason.NO_ENGINE_FOR_GENERATION, _generation_fault(engine, device)),
        (FallbackReason.TOOLCHAIN_MISMATCH, _toolchain_fault(engine, device)),
        (FallbackReason.NOT_PROVEN, _proof_fault(engine, device)),
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
    built_for = Generation.parse(engine.manifest.key.generation)
    if built_for.runs_on(device.parsed_generation):
        return ""
    return f"built for {built_for}, this device is {device.generation}"


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
    runs_where_proven = proof.device is not None and Generation.parse(proven_on).runs_on(
        device.parsed_generation
    )
    return "" if runs_where_proven else f"proven on {proven_on}, not on {device.generation}"


def _rank(engine: PublishedEngine, device: DeviceFacts) -> tuple[int, float, str]:
    """Sort key, smaller is better: exact device facts first, then speed, then digest."""
    key = engine.manifest.key
    # The weights put the facts in order: a wrong generation outweighs a wrong name, and so on.
    inexactness = (
        8 * (key.generation != device.generation)
        + 4 * (key.device_name not in ("", device.name))
        + 2 * (key.device_memory_gib not in (0, device.memory_gib))
        + (key.driver not in ("", device.driver))
    )
    return (inexactness, -mean_speedup(engine), engine.digest)


def _best_explanation(rejections: list[Rejection]) -> FallbackReason:
    reasons = [rejection.reason for rejection in rejections]
    return max(reasons, key=_PROGRESS.index, default=FallbackReason.NO_ENGINE)
