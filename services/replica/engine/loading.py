"""From a published engine, or the master, to an engine that is checked, loaded and warm here.

Everything blocks. `choice.py` decides which engine it is, and what comes after one that fails.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from services.contracts.errors import EngineError
from services.contracts.hardware.facts import DeviceFacts, Platform
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.model.recipe import Bucket
from services.contracts.registry.registry import Registry
from services.contracts.selection.selection import FallbackReason
from services.engines.base import LoadSpec
from services.engines.loader import engine_class
from services.replica.engine.checked_fallback import CheckedFallback
from services.replica.engine.checker import EngineChecker
from services.replica.engine.loaded_engine import (
    BRIEF_ALONE_S,
    BRIEF_RUN_S,
    FALLBACK_KIND,
    INTERIM_STALL_S,
    LoadedEngine,
    RunningEngine,
    stall_limit_s,
)
from services.replica.engine.samples import sample_inputs, warm_up_sizes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FetchedEngine:
    """An engine whose files are here, as they were when it was published.

    Attributes:
        duration_s: seconds to fetch and verify them.
    """

    engine: PublishedEngine
    spec: LoadSpec
    duration_s: float


@dataclass(frozen=True)
class EngineLoader:
    """Loads engines of one model version on one device.

    Attributes:
        registry: where engines and masters are fetched from.
        model: the version that is served.
        device: that engines run on.
        fallback: loads what serves when no engine fits.
        checker: runs code of an engine in a child process first.
        num_threads: of an engine on the CPU; 0 leaves it to its library.
        clock: seconds of a monotonic clock; durations of loads are taken from it.
    """

    registry: Registry
    model: ModelVersion
    device: DeviceFacts
    fallback: CheckedFallback
    checker: EngineChecker
    num_threads: int = 0
    clock: Callable[[], float] = time.monotonic

    def fetch(self, engine: PublishedEngine) -> FetchedEngine:
        """Have an engine's files here; what the cache hands out has the manifest's digests.

        Raises:
            EngineError: its kind cannot run here.
            StoreError, NotFoundError, OSError: the files are not available.
        """
        start_s = self.clock()
        kind = engine.manifest.key.kind
        if reason := engine_class(kind).unavailable_reason():
            raise EngineError(f"engine kind {kind} cannot run here: {reason}")
        spec = LoadSpec(
            manifest=engine.manifest,
            master=self.model.master,
            directory=self.registry.materialise_engine(engine),
            master_path=self.registry.materialise_master(self.model.master) / "model.onnx",
            device=self.device,
            num_threads=self.num_threads,
        )
        return FetchedEngine(engine=engine, spec=spec, duration_s=self.clock() - start_s)

    def load(self, fetched: FetchedEngine) -> LoadedEngine:
        """Check, load and warm an engine; raises whatever its library does."""
        start_s = self.clock()
        chosen = fetched.engine
        key = fetched.engine.manifest.key
        self.checker.check(fetched.spec, self.model.recipe.inputs, chosen.proof.duration_s)
        engine = engine_class(key.kind).load(fetched.spec)
        longest_run_s = self._warm(engine, key.buckets)
        # A CUDA graph for each bucket, which runs on whatever thread.
        has_graphs = key.kind is EngineKind.INDUCTOR and not self._is_cpu
        loaded = LoadedEngine(
            engine=engine,
            buckets=key.buckets,
            kind=key.kind.value,
            precision=key.precision.value,
            generation=key.generation,
            digest=chosen.digest,
            load_duration_s=fetched.duration_s + self.clock() - start_s,
            pads_to_largest=key.kind.pads_to_largest(is_cpu=self._is_cpu),
            is_brief=self._is_cpu and longest_run_s <= BRIEF_RUN_S,
            is_brief_alone=has_graphs and longest_run_s <= BRIEF_ALONE_S,
            stall_s=self._stall_limit_s(longest_run_s, key.buckets),
            speeds={timing.shape: timing.throughput for timing in chosen.proof.timings},
        )
        logger.info(
            "engine %s (%s %s for %s) is warm after %.2f s",
            loaded.digest,
            loaded.kind,
            loaded.precision,
            loaded.generation,
            loaded.load_duration_s,
        )
        return loaded

    def load_fallback(self, reason: FallbackReason | None, detail: str) -> LoadedEngine:
        """The fallback, right and warm, for the shapes that engines of this model serve.

        Raises:
            EngineError, StoreError, NotFoundError, OSError: there can be none.
        """
        start_s = self.clock()
        buckets = self.model.buckets
        logger.warning(
            "model '%s' version %d serves on the fallback: %s",
            self.model.name,
            self.model.version,
            detail,
        )
        engine, refutation = self.fallback.load(self.model)
        longest_run_s = self._warm(engine, buckets)
        stall_s = self._stall_limit_s(longest_run_s, buckets)
        loaded = self._in_place_of_engines(engine, reason, detail, start_s)
        return replace(loaded, refutation=refutation, stall_s=stall_s)

    def load_interim(self, reason: FallbackReason | None, detail: str) -> LoadedEngine | None:
        """What answers at once, until the fallback is compiled; None where nothing does."""
        start_s = self.clock()
        engine = self.fallback.load_interim(self.model)
        if engine is None:
            return None
        logger.warning(
            "model '%s' version %d serves on ONNX Runtime until the fallback is compiled: %s",
            self.model.name,
            self.model.version,
            detail,
        )
        loaded = self._in_place_of_engines(engine, reason, detail, start_s)
        return replace(loaded, is_interim=True, stall_s=INTERIM_STALL_S)

    def _in_place_of_engines(
        self, engine: RunningEngine, reason: FallbackReason | None, detail: str, start_s: float
    ) -> LoadedEngine:
        return LoadedEngine(
            engine=engine,
            buckets=self.model.buckets,
            kind=FALLBACK_KIND,
            precision=Precision.FP32.value,
            generation=self.device.generation,
            fallback_reason=reason,
            detail=detail,
            load_duration_s=self.clock() - start_s,
        )

    def _stall_limit_s(self, longest_run_s: float, buckets: tuple[Bucket, ...]) -> float:
        """What was measured bounds later runs only where the buckets bound their sizes."""
        dims = {d for spec in self.model.master.inputs for d in spec.shape if isinstance(d, str)}
        is_bounded = all(dims <= bucket.dims.keys() for bucket in buckets)
        return stall_limit_s(longest_run_s if is_bounded else None, is_cpu=self._is_cpu)

    @property
    def _is_cpu(self) -> bool:
        return self.device.parsed_generation.platform is Platform.CPU

    def _warm(self, engine: RunningEngine, buckets: tuple[Bucket, ...]) -> float:
        """Run the edges of every bucket, so that no request pays for a first call.

        Returns the seconds of the longest of these runs, the first one of each not counted.
        """
        master = self.model.master
        recipe = self.model.recipe
        longest_s = 0.0
        try:
            for sizes in warm_up_sizes(master.inputs, buckets):
                inputs = sample_inputs(master, recipe.inputs, sizes)
                first_s = self._timed(engine, inputs)
                # What is slow at first stays too slow to matter; it is not run again.
                runs_s = [self._timed(engine, inputs) for _ in range(3)] if first_s < 0.01 else []
                longest_s = max(longest_s, min([first_s, *runs_s]))
        except BaseException:
            engine.close()
            raise
        return longest_s

    def _timed(self, engine: RunningEngine, inputs: Mapping[str, Array]) -> float:
        began_s = self.clock()
        engine.run(inputs)
        return self.clock() - began_s
