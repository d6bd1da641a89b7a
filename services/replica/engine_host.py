"""From a device and a store to an engine that is chosen, verified, checked, loaded and warm.

Everything here blocks and runs in a thread of its own, while an older engine serves on.
Whatever goes wrong with one engine, the next best one is tried, and after the last one the
fallback, each time with a reason that is logged, counted and reported.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from services.contracts.errors import EngineError, NotFoundError, StoreError
from services.contracts.hardware import DeviceFacts, Platform
from services.contracts.kinds import EngineKind, Precision
from services.contracts.manifest import ModelVersion, PublishedEngine
from services.contracts.recipe import Bucket
from services.contracts.registry import Registry
from services.contracts.selection import FallbackReason, Selection, select
from services.contracts.signing import TrustRoot
from services.contracts.tensors import Array
from services.engines.base import LoadSpec
from services.engines.loader import engine_class
from services.replica.engine_checker import EngineChecker, name_here
from services.replica.failure_notes import FailureNotes
from services.replica.loaded_engine import (
    BRIEF_RUN_S,
    FALLBACK_KIND,
    LoadedEngine,
    RunningEngine,
    stall_limit_s,
)
from services.replica.passing_failures import PassingFailures
from services.replica.samples import edge_sizes, sample_inputs

logger = logging.getLogger(__name__)

# A store may be whole again later, and a disk or a process have room again (OSError); an engine
# that fails stays failed.
_PASSING_ERRORS = (StoreError, NotFoundError, OSError)


class FallbackLoader(Protocol):
    """Makes the engine that serves when no published one can."""

    def __call__(self, model: ModelVersion) -> RunningEngine:
        """A loaded fallback; raises EngineError with the reason when there can be none."""
        ...


class EngineHost:
    """Chooses and loads engines of one model version for one device."""

    def __init__(
        self,
        registry: Registry,
        model: ModelVersion,
        device: DeviceFacts,
        load_fallback: FallbackLoader,
        checker: EngineChecker,
        *,
        num_threads: int = 0,
        trust: TrustRoot | None = None,
        notes: FailureNotes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the parts; nothing is read yet."""
        self._registry = registry
        self._model = model
        self._device = device
        self._load_fallback = load_fallback
        self._checker = checker
        self._num_threads = num_threads
        self._trust = trust
        self._clock = clock
        # An engine that failed here once is not tried again in this process: failed loads
        # may leave device memory behind, and nothing that could mend it changes under it.
        self._failed: dict[str, str] = {}
        self._passing = PassingFailures(clock)
        # On whose terms engines are chosen; `_without_gate` where there is no fallback.
        self._asked = model
        self._notes = notes or FailureNotes(None)
        self._tried: dict[str, PublishedEngine] = {}

    def load(self) -> LoadedEngine:
        """The best engine that loads, or the fallback with the reason.

        Raises:
            EngineError: not even the fallback could be loaded.
            StoreError: the store cannot be read.
        """
        loaded = self.load_other_than(None)
        if loaded is None:
            raise EngineError(f"model '{self._model.name}': no engine to load")
        return loaded

    def mark_failed(self, digest: str, words: str) -> None:
        """An engine failed in service: it is not chosen again here, in other processes for a while.

        What fails in service fails requests first, and a new process has no engine before it.
        """
        self._failed[digest] = words
        if tried := self._tried.get(digest):
            self._notes.add(self._name(tried), words)

    def fetch_other_than(self, current_digest: str) -> bool:
        """Have the files here of what `load_other_than` would try; False when it would not.

        Raises:
            StoreError: the store cannot be read.
        """
        engines = self._registry.engines(self._model.master.digest)
        failed = self._known_failed(engines, current_digest)
        while (chosen := self._select(engines, failed).engine) is not None:
            if chosen.digest == current_digest:
                return False
            try:
                self._load_spec(chosen)
            except Exception as error:
                failed[chosen.digest] = self._note(chosen, error)
            else:
                return True
        return current_digest != ""

    def load_other_than(self, current_digest: str | None) -> LoadedEngine | None:
        """As `load`, but None when the best engine that loads is the current one.

        Args:
            current_digest: the engine in use, "" for the fallback, None for nothing.
        """
        engines = self._registry.engines(self._model.master.digest)
        failed = self._known_failed(engines, current_digest)
        while True:
            selection = self._select(engines, failed)
            chosen = selection.engine
            if (chosen.digest if chosen else "") == current_digest:
                return None
            if chosen is None:
                try:
                    return self._fallback(selection, failed)
                except (EngineError, OSError) as error:
                    # Other engines may have been passed over for other reasons, which come first.
                    slower = FallbackReason.SLOWER_THAN_FALLBACK
                    if not any(each.reason is slower for each in selection.rejections):
                        raise
                    # What it is slower than is not there: it is the best that this model has.
                    logger.error("no fallback here, so slower engines are taken: %s", error)
                    self._asked = _without_gate(self._model)
                    continue
            try:
                loaded = self._published(chosen)
                return replace(loaded, detail=self._passed_over(engines, loaded.digest, failed))
            except Exception as error:
                # Anything may come out of a library that reads foreign bytes, and nothing
                # of it may keep the replica from the next engine.
                failed[chosen.digest] = self._note(chosen, error)

    def _note(self, engine: PublishedEngine, error: Exception) -> str:
        """Remember that an engine could not be had, for as long as that is likely to be true."""
        words = f"{type(error).__name__}: {error}"
        if isinstance(error, _PASSING_ERRORS):
            words = self._passing.add(engine.digest, words)
            logger.error("engine %s cannot be had now, next: %s", engine.digest, words)
            return words
        logger.error("engine %s does not load here; next", engine.digest, exc_info=error)
        self._failed[engine.digest] = words
        # The library's verdict, that is.
        if isinstance(error, EngineError):
            self._notes.add(self._name(engine), words)
        return words

    def _known_failed(
        self, engines: Sequence[PublishedEngine], current_digest: str | None
    ) -> dict[str, str]:
        """By digest, why engines are not tried; one that serves here needs no other's opinion."""
        noted = {
            engine.digest: reason
            for engine in engines
            if engine.digest != current_digest
            and (reason := self._notes.reason(self._name(engine)))
        }
        return {**noted, **self._passing.waiting(), **self._failed}

    def _passed_over(
        self, engines: Sequence[PublishedEngine], digest: str, failed: Mapping[str, str]
    ) -> str:
        """In words, the better engines that failed here."""
        selection = self._select(engines, {})
        ranked = [each.digest for each in (selection.engine, *selection.runners_up) if each]
        better = ranked[: ranked.index(digest)] if digest in ranked else []
        return "; ".join(f"{each[:12]}: {failed.get(each, '')}" for each in better)

    def _name(self, engine: PublishedEngine) -> str:
        return name_here(engine.manifest, self._device, self._num_threads)

    def _select(self, engines: Sequence[PublishedEngine], failed: Mapping[str, str]) -> Selection:
        return select(
            engines,
            self._device,
            version=self._asked,
            failed_digests=frozenset(failed),
            # Before a file of an engine is fetched, let alone read.
            untrusted=self._registry.untrusted(engines, self._model.master, self._trust),
            runs=self._registry.joint_runs(self._model.master.digest, self._trust),
        )

    def _published(self, chosen: PublishedEngine) -> LoadedEngine:
        self._tried[chosen.digest] = chosen
        start_s, key = self._clock(), chosen.manifest.key
        kind = engine_class(key.kind)
        if reason := kind.unavailable_reason():
            raise EngineError(f"engine kind {key.kind} cannot run here: {reason}")
        spec = self._load_spec(chosen)
        self._checker.check(spec, self._model.recipe.inputs)
        engine = kind.load(spec)
        longest_run_s = self._warm(engine, chosen.manifest.buckets)
        self._passing.forget(chosen.digest)
        loaded = LoadedEngine(
            engine=engine,
            buckets=chosen.manifest.buckets,
            kind=key.kind.value,
            precision=key.precision.value,
            generation=key.generation,
            digest=chosen.digest,
            load_duration_s=self._clock() - start_s,
            # A CUDA graph of one shape for each bucket; on the CPU its kernels take any.
            pads_to_largest=key.kind is EngineKind.INDUCTOR and not self._is_cpu,
            is_brief=self._is_cpu and longest_run_s <= BRIEF_RUN_S,
            stall_s=self._stall_limit_s(longest_run_s, chosen.manifest.buckets),
            speeds={timing.shape: timing.throughput for timing in chosen.proof.timings},
        )
        logger.info(
            "engine %s (%s %s for %s) is warm after %.2f s",
            loaded.digest, loaded.kind, loaded.precision, loaded.generation,
            loaded.load_duration_s,
        )  # fmt: skip
        return loaded

    def _fallback(self, selection: Selection, failed: Mapping[str, str]) -> LoadedEngine:
        start_s, detail = self._clock(), _explanation(selection, failed)
        logger.warning(
            "model '%s' version %d serves on the fallback: %s",
            self._model.name, self._model.version, detail,
        )  # fmt: skip
        engine = self._load_fallback(self._model)
        buckets = self._model.recipe.buckets
        longest_run_s = self._warm(engine, buckets)
        return LoadedEngine(
            engine=engine,
            buckets=buckets,
            kind=FALLBACK_KIND,
            precision=Precision.FP32.value,
            generation=self._device.generation,
            fallback_reason=selection.fallback_reason,
            detail=detail,
            load_duration_s=self._clock() - start_s,
            stall_s=self._stall_limit_s(longest_run_s, buckets),
        )

    def _stall_limit_s(self, longest_run_s: float, buckets: tuple[Bucket, ...]) -> float:
        """What was measured bounds later runs only where the buckets bound their sizes."""
        dims = {d for spec in self._model.master.inputs for d in spec.shape if isinstance(d, str)}
        is_bounded = all(dims <= bucket.dims.keys() for bucket in buckets or (Bucket(dims={}),))
        return stall_limit_s(longest_run_s if is_bounded else None, is_cpu=self._is_cpu)

    def _load_spec(self, chosen: PublishedEngine) -> LoadSpec:
        """Fetch the files; whatever the cache hands out has the digests of the manifest."""
        return LoadSpec(
            manifest=chosen.manifest,
            master=self._model.master,
            directory=self._registry.materialise_engine(chosen),
            master_path=self._registry.materialise_master(self._model.master) / "model.onnx",
            device=self._device,
            num_threads=self._num_threads,
        )

    @property
    def _is_cpu(self) -> bool:
        return self._device.parsed_generation.platform is Platform.CPU

    def _warm(self, engine: RunningEngine, buckets: tuple[Bucket, ...]) -> float:
        """Run the edges of every bucket, so that no request pays for a first call.

        Returns the seconds of the longest of these runs, the first one of each not counted.
        """
        specs, recipe = self._model.master.inputs, self._model.recipe
        longest_s = 0.0
        try:
            for sizes in edge_sizes(specs, buckets):
                inputs = sample_inputs(specs, recipe.inputs, sizes)
                first_s = self._timed(engine, inputs)
                # What is slow at first stays too slow to matter; it is not run again.
                runs_s = [self._timed(engine, inputs) for _ in range(3)] if first_s < 0.01 else []
                longest_s = max(longest_s, min([first_s, *runs_s]))
        except BaseException:
            engine.close()
            raise
        return longest_s

    def _timed(self, engine: RunningEngine, inputs: Mapping[str, Array]) -> float:
        began_s = self._clock()
        engine.run(inputs)
        return self._clock() - began_s


def _without_gate(model: ModelVersion) -> ModelVersion:
    recipe = model.recipe.model_copy(update={"must_beat_fallback": False})
    return model.model_copy(update={"recipe": recipe})


def _explanation(selection: Selection, failed: Mapping[str, str]) -> str:
    """Why no published engine serves, in words: one clause for each engine."""
    reason = selection.fallback_reason.value if selection.fallback_reason else "unknown"
    clauses = [
        f"{rejection.digest[:12]}: {failed.get(rejection.digest, rejection.detail)}"
        for rejection in selection.rejections
    ]
    return f"{reason} ({'; '.join(clauses)})" if clauses else reason
