"""The inside of a joint run: all candidates loaded beside each other, and timed in turns."""

import logging
from collections.abc import Sequence

from compiler_worker.children.child import Events
from compiler_worker.children.requests import JointRequest, JointResult, ProofRequest, Stage
from compiler_worker.inputs.sampling import Sample, timed_samples
from compiler_worker.proof.proof_child import load_engine, prepare_torch
from compiler_worker.references.models import FxModel, Model, OrtModel
from compiler_worker.references.reference import open_eager
from compiler_worker.timing.benchmark import BenchmarkLimits, Contender, race
from compiler_worker.timing.fallback import OpenedFallback, open_fallback
from compiler_worker.timing.host_turns import alone, beside_others
from services.contracts.errors import EngineError, InvalidRequestError
from services.contracts.hardware.facts import Platform
from services.contracts.selection.joint_run import JointTiming
from services.engines.base import Engine

logger = logging.getLogger(__name__)


def time_one(request: JointRequest, events: Events) -> JointResult:
    """Time what a request names.

    Raises:
        EngineError: none of the engines runs.
        ProofError: nothing on this machine runs the master itself.
    """
    return _Timing(request, events).run()


class _Timing:
    """State of one joint run."""

    def __init__(self, request: JointRequest, events: Events) -> None:
        self._request = request
        self._events = events
        self._any: ProofRequest = request.entrants[0].proof
        self._samples = timed_samples(
            self._any.master, self._any.recipe, self._any.manifest.buckets
        )
        self._failed: dict[str, str] = {}

    def run(self) -> JointResult:
        """Load everything, then time it."""
        prepare_torch(self._any)
        cache_dir = self._any.cache_dir
        events = self._events
        with beside_others(cache_dir, events), events.stage(Stage.BENCHMARK):
            engines = self._loaded()
            eager = self._opened_eager()
            events.line("opening the fallback")
            fallback = open_fallback(self._any, self._samples)
        with alone(cache_dir, events), events.stage(Stage.BENCHMARK):
            shapes = tuple(self._at(each, engines, eager, fallback) for each in self._samples)
            fallback.close()
            for engine in engines.values():
                engine.close()
        return JointResult(shapes=shapes, failed=self._failed, fallback=fallback.words)

    def _loaded(self) -> dict[str, Engine]:
        engines: dict[str, Engine] = {}
        for entrant in self._request.entrants:
            key = entrant.proof.manifest.key
            self._events.line(f"loading {key.kind} {key.precision} {entrant.digest[:12]}")
            try:
                engines[entrant.digest] = _warm(entrant.proof, self._samples)
            except (EngineError, InvalidRequestError) as error:
                self._failed[entrant.digest] = f"it does not run beside the others: {error}"
        if not engines:
            raise EngineError(f"nothing to compare: {'; '.join(self._failed.values())}")
        return engines

    def _opened_eager(self) -> Model:
        asked = self._any
        device = "cuda" if self._platform is Platform.CUDA else "cpu"
        eager = open_eager(asked.master_path, asked.master, device)
        if isinstance(eager, FxModel):
            return eager
        # What the importer cannot take: proofs are timed beside this too.
        return OrtModel.open(asked.master_path, asked.master, num_threads=asked.num_threads)

    def _at(
        self,
        sample: Sample,
        engines: dict[str, Engine],
        eager: Model,
        fallback: OpenedFallback,
    ) -> JointTiming:
        self._events.line(f"timing {len(engines)} engines together: {sample.bucket} {sample.sizes}")
        held = {entrant.digest: entrant.held_bytes for entrant in self._request.entrants}
        sides = [
            *(Contender(model=each, held_bytes=held[name]) for name, each in engines.items()),
            Contender(
                model=eager,
                held_bytes=self._request.eager_held_bytes,
                is_context=fallback.contender is not None,
            ),
            *([fallback.contender] if fallback.contender else []),
        ]
        limits = BenchmarkLimits(
            seconds_per_side=self._any.benchmark_s,
            min_iterations=self._any.benchmark_iterations,
        )
        times = race(sides, self._platform, sample, self._any.recipe, limits)
        return JointTiming(
            bucket=sample.bucket,
            sizes=sample.sizes,
            engines=dict(zip(engines, times, strict=False)),
            eager=times[len(engines)],
            fallback=times[-1] if fallback.contender else None,
        )

    @property
    def _platform(self) -> Platform:
        return self._any.device.parsed_generation.platform


def _warm(request: ProofRequest, samples: Sequence[Sample]) -> Engine:
    findings: list[str] = []
    engine = load_engine(request, findings)
    for sample in samples:
        engine.run(sample.inputs)
    if findings:
        logger.info("remarks on loading: %s", "; ".join(findings))
    return engine
