"""The inside of a proof: load the engine as a replica would, judge it, then time it."""

import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from compiler_worker.building.publish import now
from compiler_worker.children.child import Events
from compiler_worker.children.requests import ProofRequest, Stage
from compiler_worker.inputs.calibrated_recipe import calibrated_recipe
from compiler_worker.inputs.sampling import Sample, timed_samples
from compiler_worker.memory import memory_growth
from compiler_worker.proof.claim import Claim, ProofVerdict, padding_hint
from compiler_worker.proof.judge import judge
from compiler_worker.proof.repeatability import change
from compiler_worker.references.models import FxModel, Model
from compiler_worker.references.reference import Reference, open_eager, open_reference
from compiler_worker.timing.benchmark import BenchmarkLimits, Contender, Contest, benchmark
from compiler_worker.timing.fallback import open_fallback
from compiler_worker.timing.host_turns import alone, beside_others
from services.contracts.builds.code_digest import proof_code
from services.contracts.errors import EngineError, EngineIncompatibleError, InvalidRequestError
from services.contracts.hardware.facts import Platform
from services.contracts.kserve.byte_strings import strings_from_array
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import FailedSample, Proof, ProofOutcome
from services.contracts.model.recipe import Recipe
from services.engines.base import Engine, LoadSpec
from services.engines.caches.compile_cache import use_compile_cache
from services.engines.loader import engine_class


def prove_one(request: ProofRequest, events: Events) -> Proof:
    """Prove one engine.

    Raises:
        ProofError: there is no reference to be trusted; no verdict on the engine.
        EngineIncompatibleError: it is for another device or library; no verdict either.
    """
    started = time.monotonic()
    proof = _Proving(request, events).run()
    duration_s = time.monotonic() - started - events.waited_s
    return proof.model_copy(update={"duration_s": duration_s})


class _Proving:
    """State of one proof."""

    def __init__(self, request: ProofRequest, events: Events) -> None:
        self._request = request
        self._events = events
        self._platform = request.device.parsed_generation.platform
        self._torch_device = "cuda" if self._platform is Platform.CUDA else "cpu"
        # What its builder warned of first, then what its loader does.
        self._findings = list(request.manifest.findings)

    def run(self) -> Proof:
        """Load, judge, and time what passed."""
        prepare_torch(self._request)
        events = self._events
        with beside_others(self._request.cache_dir, events), events.stage(Stage.PROVE):
            self._events.line("loading the engine")
            try:
                # The engine first: memory is measured before anything else has grown.
                with memory_growth(self._platform) as engine_growth:
                    engine = load_engine(self._request, self._findings)
                    # At the largest sizes: libraries allocate their workspaces in the first run.
                    engine.run(self._timed()[-1].inputs)
            except EngineIncompatibleError:
                # What this machine lacks must not stand against an engine that others run.
                raise
            except (EngineError, InvalidRequestError) as error:
                return self._proof(ProofVerdict(reason=f"the engine failed: {error}"))
            with memory_growth(self._platform) as eager_growth:
                eager = self._opened_eager()
            reference = self._opened_reference(eager)
            self._events.line(f"comparing with {reference.name}")
            verdict = judge(engine, reference, self._claim(), self._events.line)
        proof = self._proof(verdict).model_copy(
            update={
                "peak_memory_bytes": engine_growth.num_bytes,
                "eager_peak_memory_bytes": eager_growth.num_bytes,
            }
        )
        if verdict.reason:
            proof = proof.model_copy(update={"worst": self._worst(verdict)})
        else:
            proof = self._timed_proof(proof, engine, reference.baseline)
        engine.close()
        return proof

    def _worst(self, verdict: ProofVerdict) -> FailedSample | None:
        path = self._request.worst_path
        return verdict.worst.save(path) if verdict.worst and path else None

    def _opened_eager(self) -> FxModel | str:
        request = self._request
        eager = open_eager(request.master_path, request.master, self._torch_device)
        if isinstance(eager, FxModel):
            eager.run(self._timed()[-1].inputs)
        return eager

    def _opened_reference(self, eager: FxModel | str) -> Reference:
        return open_reference(
            self._request.master_path,
            self._request.master,
            eager,
            self._request.cache_dir,
            kind=self._request.manifest.key.kind,
            device=self._torch_device,
            num_threads=self._request.num_threads,
        )

    def _claim(self) -> Claim:
        request = self._request
        return Claim(
            master=request.master,
            recipe=drawn_recipe(request),
            precision=request.manifest.key.precision,
            buckets=request.manifest.buckets,
            samples=_read_samples(request.samples_path),
            # The same whenever this engine is proven, another one for every other engine.
            seed=int(request.manifest.key.digest()[:12], 16),
            master_path=request.master_path,
        )

    def _timed(self) -> list[Sample]:
        request = self._request
        return timed_samples(request.master, request.recipe, request.manifest.buckets)

    def _timed_proof(self, proof: Proof, engine: Model, eager: Model) -> Proof:
        """The proof with the curve of engine, eager and fallback."""
        request = self._request
        events = self._events
        timed = self._timed()
        with beside_others(request.cache_dir, events), events.stage(Stage.BENCHMARK):
            events.line("opening the fallback")
            fallback = open_fallback(request, timed)
            answers = [engine.run(sample.inputs) for sample in timed]
        contest = Contest(
            engine=Contender(model=engine, held_bytes=proof.peak_memory_bytes),
            eager=Contender(model=eager, held_bytes=proof.eager_peak_memory_bytes),
            fallback=fallback.contender,
            platform=self._platform,
        )
        limits = BenchmarkLimits(
            seconds_per_side=2 * request.benchmark_s / len(contest.contenders),
            # What this leaves in doubt is timed again, beside all other candidates.
            patience=1.0,
            min_iterations=request.benchmark_iterations,
        )
        with alone(request.cache_dir, events), events.stage(Stage.BENCHMARK):
            events.line(f"timing beside eager; the fallback: {fallback.words}")
            timings = benchmark(contest, timed, request.recipe, limits)
            fallback.close()
            reason = self._changed(engine, timed, answers)
        outcome = ProofOutcome.FAILED if reason else proof.outcome
        found = {"timings": timings, "fallback": fallback.words}
        return proof.model_copy(update={"outcome": outcome, "reason": reason, **found})

    def _changed(
        self, engine: Model, timed: Sequence[Sample], answers: Sequence[Mapping[str, Array]]
    ) -> str:
        """Whether the many runs that were timed changed an answer, in words."""
        request = self._request
        for sample, before in zip(timed, answers, strict=True):
            again = engine.run(sample.inputs)
            if words := change(request.master, request.recipe, sample, again, before):
                return f"after many runs, {words}"
        return ""

    def _proof(self, verdict: ProofVerdict) -> Proof:
        key = self._request.manifest.key
        hint = ""
        if key.kind.pads_to_largest(is_cpu=self._platform is Platform.CPU):
            hint = padding_hint(verdict.checks, key.buckets)
        return Proof(
            outcome=ProofOutcome.FAILED if verdict.reason else ProofOutcome.PASSED,
            reason=verdict.reason + hint,
            reference=verdict.reference,
            device=self._request.device,
            checks=verdict.checks,
            tasks=verdict.tasks,
            code=proof_code(),
            samples=dict(verdict.samples),
            notes=verdict.notes,
            columns=verdict.columns,
            agreements=verdict.agreements,
            power=verdict.power,
            findings=tuple(self._findings),
            created_at=now(),
        )


def load_engine(request: ProofRequest, findings: list[str]) -> Engine:
    """Load the engine as a replica would; what its loader warns of is added to `findings`.

    Raises:
        EngineError: it does not load; of class EngineIncompatibleError where others may load it.
    """
    spec = LoadSpec(
        manifest=request.manifest,
        master=request.master,
        directory=request.engine_dir,
        master_path=request.master_path,
        device=request.device,
        num_threads=request.num_threads,
    )
    with _warnings_into(findings):
        return engine_class(request.manifest.key.kind).load(spec)


def prepare_torch(request: ProofRequest) -> None:
    """Compile cache, threads and full precision, before torch computes anything."""
    import torch

    from services.engines.torch_runtime.full_precision import use_full_fp32

    use_compile_cache(request.cache_dir)
    if request.num_threads:
        torch.set_num_threads(request.num_threads)
    # Eager's own error sets the bound for fp32 engines: it must be fp32 throughout.
    use_full_fp32()


def drawn_recipe(request: ProofRequest) -> Recipe:
    """The recipe that a proof's inputs are drawn by."""
    calibration = _read_samples(request.calibration_path)
    if calibration is None:
        return request.recipe
    return calibrated_recipe(request.recipe, request.master, calibration)


def _read_samples(path: Path | None) -> dict[str, Array] | None:
    if path is None:
        return None
    with np.load(path) as archive:
        return {name: strings_from_array(archive[name]) for name in archive.files}


class _Collector(logging.Handler):
    """Collects warnings that libraries log."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self._lines.append(record.getMessage())


@contextmanager
def _warnings_into(lines: list[str]) -> Iterator[None]:
    """Collect Python warnings and logged warnings of the block, word for word."""
    collector = _Collector(lines)
    logging.getLogger().addHandler(collector)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            yield
        lines.extend(str(warning.message) for warning in caught)
    finally:
        logging.getLogger().removeHandler(collector)
