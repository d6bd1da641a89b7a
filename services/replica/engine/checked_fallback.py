"""The fallback that answers here as it should: torch's, or ONNX Runtime with the master itself.

What torch compiles is made by our importer, by a compiler and for this very device, and each may
be wrong. A model version holds what ONNX Runtime says of the import, and a few of its answers; one
without them, of an older Smelt, is served by torch unasked.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from services.contracts.errors import EngineError, SmeltError
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from services.contracts.store.kept_answers import fault_of, read_answers
from services.engines.fallback.fallback_program import importer_code
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from services.replica.engine.loaded_engine import (
    IN_PLACE,
    FallbackLoader,
    FoundBy,
    Refutation,
    RunningEngine,
)
from services.replica.own_threads import own_threads

logger = logging.getLogger(__name__)

# For all kept answers, which are of small sizes (a megabyte in all, or one answer): an engine that
# is slower would take minutes for a request of the largest.
_QUICK_S = 5.0


@dataclass(frozen=True)
class CheckedFallback:
    """Loads the fallback of a model version, and what serves in its place where it is wrong.

    Attributes:
        registry: holds the master and the answers that the fallback is compared with.
        load_compiled: compiles the master's graph with torch.
        num_threads: of ONNX Runtime on the CPU; 0 leaves it to the library.
        clock: seconds of a monotonic clock, which bound the comparison.
    """

    registry: Registry
    load_compiled: FallbackLoader
    num_threads: int
    clock: Callable[[], float]

    def load_interim(self, model: ModelVersion) -> RunningEngine | None:
        """ONNX Runtime on the CPU, which answers until torch has compiled: a minute before.

        None where it would serve for good, is found to be wrong, or is too slow to be of use.
        """
        if _by_importer(model) or model.fallback_answers is None:
            return None
        try:
            engine = self._master_itself(model)
            fault = self._fault_of(engine, model, _QUICK_S)
        except Exception as error:  # whatever it is, the fallback itself is still to be tried
            fault = f"{type(error).__name__}: {error}"
        if not fault:
            return engine
        logger.warning(
            "model '%s': ONNX Runtime does not serve while torch compiles: %s", model.name, fault
        )
        return None

    def load(self, model: ModelVersion) -> tuple[RunningEngine, Refutation | None]:
        """A loaded engine; and where torch's fallback is wrong, why it is not that.

        Raises:
            EngineError: there can be none.
            StoreError, NotFoundError, OSError: the kept answers or the master is not available.
        """
        found = _by_importer(model) or self._by_torch(model)
        if not isinstance(found, Refutation):
            return found, None
        level = logging.INFO if found.found_by is FoundBy.UNSUPPORTED else logging.ERROR
        logger.log(level, "model '%s' version %d: %s", model.name, model.version, found.words)
        try:
            engine = self._master_itself(model)
        except EngineError as error:
            raise EngineError(
                f"no fallback for model '{model.name}': {found.words}; and that fails: {error}"
            ) from error
        if fault := self._fault_of(engine, model):
            raise EngineError(
                f"no fallback for model '{model.name}': {found.words}; and its outputs are wrong "
                f"on this device too: {fault}"
            )
        return engine, found

    def _by_torch(self, model: ModelVersion) -> RunningEngine | Refutation:
        try:
            engine = self.load_compiled(model)
        except EngineError as error:
            # An older importer refused it, and this one may too: ONNX Runtime is known to run it.
            if model.fallback_verdict is None or not model.fallback_verdict.refused:
                raise
            return _unsupported(str(error))
        if fault := self._fault_of(engine, model):
            words = f"{IN_PLACE}, whose outputs are wrong on this device: {fault}"
            return Refutation(found_by=FoundBy.DEVICE, words=words)
        return engine

    def _fault_of(
        self, engine: RunningEngine, model: ModelVersion, within_s: float = math.inf
    ) -> str:
        """How its answers differ from the kept ones; "" if they do not, else it is closed."""
        try:
            fault = self._first_fault(engine, model, within_s)
        except BaseException:
            engine.close()
            raise
        if fault:
            engine.close()
        return fault

    def _first_fault(self, engine: RunningEngine, model: ModelVersion, within_s: float) -> str:
        verdict = model.fallback_verdict
        answers = model.fallback_answers
        if verdict is None or answers is None:
            return ""
        path = self.registry.materialise_samples(answers)
        until_s = self.clock() + within_s
        for kept in read_answers(path, model.master):
            try:
                found = engine.run(kept.inputs)
                fault = fault_of(found, kept, model.master.outputs, model.recipe, verdict.allowed)
            except SmeltError as error:
                fault = f"it fails where {verdict.witness} answers: {error}"
            if fault:
                return fault
            if self.clock() > until_s:
                return f"the stored check inputs take longer than {within_s:.0f} s"
        return ""

    def _master_itself(self, model: ModelVersion) -> RunningEngine:
        path = self.registry.materialise_master(model.master) / "model.onnx"
        return OnnxruntimeEngine.of_master(
            model.master, model.buckets, path, num_threads=own_threads(self.num_threads)
        )


def _by_importer(model: ModelVersion) -> Refutation | None:
    """What was found when the model was added; of another importer's graph it says nothing."""
    verdict = model.fallback_verdict
    if verdict is None or not verdict.refutes(importer_code()):
        return None
    if verdict.refused:
        return _unsupported(verdict.refused)
    words = f"{IN_PLACE}, whose graph is imported wrong: {verdict.refuted}"
    return Refutation(found_by=FoundBy.IMPORTER, words=words)


def _unsupported(reason: str) -> Refutation:
    words = f"{IN_PLACE}, which cannot compute this model: {reason}"
    return Refutation(found_by=FoundBy.UNSUPPORTED, words=words)
