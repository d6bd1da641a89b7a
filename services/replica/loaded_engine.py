"""An engine that is loaded and warm, with what reports and metrics say of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from services.contracts.recipe import Bucket
from services.contracts.selection import FallbackReason
from services.contracts.tensors import Array

FALLBACK_KIND = "fallback"
# Handing a batch to another thread and back takes 100 to 200 microseconds under load, most of
# them waiting for the interpreter. An engine that needs no longer than this runs on the event
# loop instead: it holds other requests up for less than decoding a large one does.
BRIEF_RUN_S = 100e-6


class RunningEngine(Protocol):
    """What serving needs of an engine, published or fallback; see `services.engines.base`."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs."""
        ...

    def close(self) -> None:
        """Release what it holds; a second call does nothing."""
        ...


@dataclass(frozen=True, kw_only=True)
class LoadedEngine:
    """One engine in this process.

    Attributes:
        buckets: the shapes that it was built for; empty for any.
        kind: an EngineKind's value, or `fallback`.
        digest: "" for the fallback.
        fallback_reason: None for a published engine.
        detail: the reason in words, "" for a published engine that is the best one here.
        load_duration_s: seconds to verify, load and warm it.
        is_brief: it always answers within BRIEF_RUN_S, and on the CPU.
    """

    engine: RunningEngine
    buckets: tuple[Bucket, ...]
    kind: str
    precision: str
    generation: str
    digest: str = ""
    fallback_reason: FallbackReason | None = None
    detail: str = ""
    load_duration_s: float = 0.0
    is_brief: bool = False
