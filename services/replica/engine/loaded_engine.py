"""An engine that is loaded and warm, with its facts for reports and metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket
from services.contracts.selection.selection import FallbackReason

FALLBACK_KIND = "fallback"
IN_PLACE = "ONNX Runtime serves in place of torch.compile"
# Handing a batch to another thread and back takes 100 to 200 microseconds under load, most of
# them waiting for the interpreter. An engine that needs no longer than this runs on the event
# loop instead: it holds other requests up for less than decoding a large one does.
BRIEF_RUN_S = 100e-6
# A CUDA graph runs on whatever thread, so a call that is alone is spared the way to another one and
# back, a sixth of its time on an H200. What comes meanwhile would wait for the engine anyway.
BRIEF_ALONE_S = 2e-3
# A run of which nothing is known in advance may take this long.
STALL_S = 60.0
# At sizes at which it never ran, beside a compiler that takes all cores.
INTERIM_STALL_S = 600.0
# No run is taken for a hang before: a container that is throttled or paused, or a machine that
# swaps, stands still for seconds, whatever the engine. A GPU does so for longer, while other
# processes load and build engines on it.
_MIN_STALL_CPU_S = 10.0
_MIN_STALL_GPU_S = 30.0


class RunningEngine(Protocol):
    """What serving needs of an engine, published or fallback; see `services.engines.base`."""

    name: str

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs; arrays are of any shape."""
        ...

    def close(self) -> None:
        """Release what it holds; a second call does nothing."""
        ...


# Loads what serves when no published engine can; raises EngineError with the reason when there can
# be none.
FallbackLoader = Callable[[ModelVersion], RunningEngine]


class FoundBy(StrEnum):
    """What showed a fallback to be wrong, or not to be; a label of a metric, so a closed set.

    IMPORTER: its graph differed from ONNX Runtime when the model was added. DEVICE: what was
    compiled of it differs from the kept answers here. UNSUPPORTED: it is not wrong, but torch has
    no such graph or fails to compile it.
    """

    IMPORTER = "importer"
    DEVICE = "device"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, kw_only=True)
class Refutation:
    """Why torch's fallback does not serve, with output, distance and bound in words."""

    found_by: FoundBy
    words: str


@dataclass(frozen=True, kw_only=True)
class LoadedEngine:
    """One engine in this process.

    Attributes:
        buckets: the shapes that it was built for, or that the fallback serves.
        kind: an EngineKind's value, or `fallback`.
        digest: "" for the fallback.
        fallback_reason: None for a published engine.
        refutation: why ONNX Runtime is the fallback; None where torch is, and for other engines.
        is_interim: ONNX Runtime answers until the fallback is compiled, and is replaced by it.
        detail: the reason in words, "" for a published engine that is the best one here.
        load_duration_s: seconds to verify, load and warm it.
        pads_to_largest: it computes the largest sizes of a bucket, whatever it is given.
        is_brief: it always answers within BRIEF_RUN_S, and on the CPU.
        is_brief_alone: it always answers within BRIEF_ALONE_S, and runs on any thread.
        stall_s: a run that takes longer hangs.
        speeds: samples per second by shape, as proven; empty for the fallback.
    """

    engine: RunningEngine
    buckets: tuple[Bucket, ...]
    kind: str
    precision: str
    generation: str
    digest: str = ""
    fallback_reason: FallbackReason | None = None
    refutation: Refutation | None = None
    is_interim: bool = False
    detail: str = ""
    load_duration_s: float = 0.0
    pads_to_largest: bool = False
    is_brief: bool = False
    is_brief_alone: bool = False
    stall_s: float = STALL_S
    speeds: Mapping[str, float] = field(default_factory=dict)

    def after_failure(self, words: str) -> "LoadedEngine":
        """What answers until the fallback is compiled, once that failed: it is not compiling."""
        words = f"{IN_PLACE}, which failed here: {words}"
        return replace(self, refutation=Refutation(found_by=FoundBy.UNSUPPORTED, words=words))


def stall_limit_s(longest_run_s: float | None, *, is_cpu: bool) -> float:
    """Seconds after which a run of an engine is taken for a hang.

    100 times the longest run: on a loaded machine builds that take all cores slow an engine
    some 10 times, and values other than those it was warmed with may take longer. Engines that
    take more than 0.6 s would wait for minutes by that; they get STALL_S, or those 10 times.

    Args:
        longest_run_s: measured at the largest sizes that it takes; None when they are unbounded.
        is_cpu: it runs on the CPU.
    """
    if longest_run_s is None:
        return STALL_S
    least_s = _MIN_STALL_CPU_S if is_cpu else _MIN_STALL_GPU_S
    return max(least_s, min(100 * longest_run_s, STALL_S), 10 * longest_run_s)
