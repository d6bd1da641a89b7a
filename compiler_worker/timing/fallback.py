"""The fallback in a proof: the same program and the same compiler as in a replica.

Compiling takes tens of seconds, once for each master, recipe, torch and machine: both the
program and torch's code are kept in the cache that all proofs and replicas of it share.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from compiler_worker.children.requests import ProofRequest
from compiler_worker.inputs.sampling import Sample
from compiler_worker.memory import memory_growth
from compiler_worker.timing.benchmark import Contender
from services.contracts.errors import SmeltError
from services.contracts.model.recipe import Bucket, DimRange
from services.engines.fallback.fallback_engine import FallbackEngine, FallbackSpec
from services.engines.fallback.fallback_program import kept_program

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class OpenedFallback:
    """The fallback, or why there is none.

    Attributes:
        words: how it computes, or why it is not there; a proof records them.
        held_bytes: what loading it used, the compiler's own memory with it.
    """

    engine: FallbackEngine | None
    words: str
    held_bytes: int = 0

    @property
    def contender(self) -> Contender | None:
        """What takes part in the benchmark."""
        return Contender(model=self.engine, held_bytes=self.held_bytes) if self.engine else None

    def close(self) -> None:
        """Give its memory back."""
        if self.engine:
            self.engine.close()


def open_fallback(request: ProofRequest, samples: Sequence[Sample]) -> OpenedFallback:
    """Load the fallback as a replica of this machine would, and run it at every timed shape.

    Whatever fails in it is no fault of the engine under proof, which is then timed without it.
    """
    if not request.is_fallback_timed:
        return OpenedFallback(engine=None, words="not timed: SMELT_BENCHMARK_FALLBACK is off")
    try:
        with memory_growth(request.device.parsed_generation.platform) as growth:
            engine = _loaded(request)
            # torch compiles or captures in its first run of a shape: before it is timed.
            for sample in samples:
                engine.run(sample.inputs)
    except Exception as error:  # torch's compiler raises anything
        logger.warning("no fallback to be timed", exc_info=True)
        words = str(error) if isinstance(error, SmeltError) else f"{type(error).__name__}: {error}"
        return OpenedFallback(engine=None, words=f"not timed: {words}")
    words = f"{engine.mode}: {engine.reason}" if engine.reason else engine.mode.value
    return OpenedFallback(engine=engine, words=words, held_bytes=growth.num_bytes)


def _loaded(request: ProofRequest) -> FallbackEngine:
    from compiler_worker.builders.exported_program import export_program

    buckets = request.manifest.buckets
    program_path = kept_program(
        request.cache_dir,
        request.master,
        buckets,
        partial(export_program, request.master_path, buckets),
    )
    return FallbackEngine.load(
        FallbackSpec(
            program_path=program_path,
            master=request.master,
            buckets=(smallest_of(buckets[0]),),
            device=request.device,
            num_threads=request.num_threads,
        )
    )


def smallest_of(bucket: Bucket) -> Bucket:
    """One shape to warm up at: the benchmark warms up each of its own."""
    sizes = {n: max(r.min, 1) for n, r in bucket.dims.items()}
    return Bucket(dims={n: DimRange(min=s, opt=s, max=s) for n, s in sizes.items()})
