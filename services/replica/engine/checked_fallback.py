"""The fallback that answers here as it should: torch's, or ONNX Runtime with the master itself.

What torch compiles is made by our importer, by a compiler and for this very device, and each may
be wrong. A model version holds what ONNX Runtime says of the import, and a few of its answers; one
without them, of an older Smelt, is served by torch unasked.
"""

import logging
from dataclasses import dataclass

from services.contracts.errors import EngineError, SmeltError
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from services.contracts.store.kept_answers import fault_of, read_answers
from services.engines.fallback.fallback_engine import FallbackEngine
from services.engines.fallback.fallback_program import importer_code
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from services.replica.engine.loaded_engine import FallbackLoader, FoundBy, Refutation, RunningEngine

logger = logging.getLogger(__name__)

_IN_PLACE = "ONNX Runtime serves in place of torch.compile"


@dataclass(frozen=True, kw_only=True)
class LoadedFallback:
    """What serves where no engine does.

    Attributes:
        refutation: why it is ONNX Runtime for good; None where it is torch, or will be.
        is_interim: torch takes its place once it has compiled the graph.
    """

    engine: RunningEngine
    refutation: Refutation | None = None
    is_interim: bool = False


class CheckedFallback:
    """Loads the fallback of a model version, and what serves in its place where it is wrong."""

    def __init__(
        self, registry: Registry, load_torch: FallbackLoader, *, num_threads: int, is_cpu: bool
    ) -> None:
        """Take the parts; nothing is read yet.

        Args:
            registry: has the masters and kept answers.
            load_torch: loads what torch runs.
            num_threads: of ONNX Runtime; 0 leaves it to that.
            is_cpu: engines run on the CPU, where ONNX Runtime is about as fast as torch.
        """
        self._registry, self._load_torch = registry, load_torch
        self._num_threads, self._is_cpu = num_threads, is_cpu

    def load(self, model: ModelVersion, *, is_compiled: bool) -> LoadedFallback:
        """A loaded engine; and where torch's fallback is wrong, why it is not that.

        Raises:
            EngineError: there can be none.
            StoreError, NotFoundError, OSError: the kept answers or the master cannot be had.
        """
        refutation = _by_importer(model)
        # Until torch is imported, has exported the graph and compiled it: a minute.
        is_wanted_now = refutation is None and not is_compiled and self._is_cpu
        if is_wanted_now and (engine := self._right_master(model)):
            return LoadedFallback(engine=engine, is_interim=True)
        found = refutation or self._by_torch(model, is_compiled=is_compiled)
        if not isinstance(found, Refutation):
            is_interim = isinstance(found, FallbackEngine) and found.is_interim
            return LoadedFallback(engine=found, is_interim=is_interim)
        level = logging.INFO if found.found_by is FoundBy.UNSUPPORTED else logging.ERROR
        logger.log(level, "model '%s' version %d: %s", model.name, model.version, found.words)
        return LoadedFallback(engine=self._in_place_of_torch(model, found), refutation=found)

    def _right_master(self, model: ModelVersion) -> RunningEngine | None:
        """ONNX Runtime with the master itself; None where it fails, or was found to be wrong."""
        try:
            engine = self._master_itself(model)
        except EngineError:
            return None
        if self._by_device(engine, model) is None:
            return engine
        engine.close()
        return None

    def _by_torch(self, model: ModelVersion, *, is_compiled: bool) -> RunningEngine | Refutation:
        try:
            engine = self._load_torch(model, is_compiled=is_compiled)
        except EngineError as error:
            # An older importer refused it, and this one may too: ONNX Runtime is known to run it.
            if model.fallback_verdict is None or not model.fallback_verdict.refused:
                raise
            return _unsupported(str(error))
        try:
            refutation = self._by_device(engine, model)
        except BaseException:
            engine.close()
            raise
        if refutation is None:
            return engine
        engine.close()
        return refutation

    def _by_device(self, engine: RunningEngine, model: ModelVersion) -> Refutation | None:
        """Compare all kept answers with what an engine computes here."""
        verdict, answers = model.fallback_verdict, model.fallback_answers
        if verdict is None or answers is None:
            return None
        path = self._registry.materialise_samples(answers)
        for kept in read_answers(path, model.master):
            try:
                found = engine.run(kept.inputs)
                fault = fault_of(found, kept, model.master.outputs, model.recipe, verdict.allowed)
            except SmeltError as error:
                fault = f"it fails where {verdict.witness} answers: {error}"
            if fault:
                words = f"{_IN_PLACE}, which answers wrong on this device: {fault}"
                return Refutation(found_by=FoundBy.DEVICE, words=words)
        return None

    def _master_itself(self, model: ModelVersion) -> RunningEngine:
        path = self._registry.materialise_master(model.master) / "model.onnx"
        return OnnxruntimeEngine.of_master(
            model.master, model.buckets, path, num_threads=self._num_threads
        )

    def _in_place_of_torch(self, model: ModelVersion, refutation: Refutation) -> RunningEngine:
        try:
            return self._master_itself(model)
        except EngineError as error:
            raise EngineError(
                f"no fallback for model '{model.name}': {refutation.words}; and that fails: {error}"
            ) from error


def _by_importer(model: ModelVersion) -> Refutation | None:
    """What was found when the model was added; of another importer's graph it says nothing."""
    verdict = model.fallback_verdict
    if verdict is None or not verdict.refutes(importer_code()):
        return None
    if verdict.refused:
        return _unsupported(verdict.refused)
    words = f"{_IN_PLACE}, whose graph is imported wrong: {verdict.refuted}"
    return Refutation(found_by=FoundBy.IMPORTER, words=words)


def _unsupported(reason: str) -> Refutation:
    words = f"{_IN_PLACE}, which cannot compute this model: {reason}"
    return Refutation(found_by=FoundBy.UNSUPPORTED, words=words)
