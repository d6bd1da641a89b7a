"""The inside of a proof: load the engine as a replica would, judge it, then time it."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from compiler_worker.children.child import Events
from compiler_worker.children.requests import (
    ProofRequest,
    ProofResult,
    Stage,
)
from compiler_worker.inputs.calibrated_recipe import calibrated_recipe
from compiler_worker.inputs.sampling import Sample, timed_samples
from compiler_worker.memory import memory_growth
from compiler_worker.proof.claim import Claim, ProofVerdict
from compiler_worker.proof.engine_loading import (
    load_engine,
    prepare_torch,
)
from compiler_worker.proof.judge import judge
from compiler_worker.proof.padding_hint import padding_hint
from compiler_worker.proof.repeatability import change
from compiler_worker.references.models import FxModel, Model
from compiler_worker.references.reference import Reference, open_eager, open_reference
from compiler_worker.timing.benchmark import Contender
from compiler_worker.timing.host_turns import beside_others
from compiler_worker.timing.together import time_engines
from services.contracts.builds.code_digest import proof_code
from services.contracts.errors import (
    EngineError,
    EngineIncompatibleError,
    InvalidRequestError,
    ProofError,
)
from services.contracts.hardware.facts import Platform
from services.contracts.kserve.byte_strings import strings_from_array
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import FailedSample, Proof, ProofOutcome
from services.contracts.model.recipe import Recipe
from services.contracts.process.disk_room import is_of_full_disk
from services.contracts.text.moments import timestamp


def prove_one(request: ProofRequest, events: Events) -> ProofResult:
    """Prove one engine.

    Raises:
        ProofError: there is no reference to be trusted, or a disk is full; no verdict on the
            engine.
        EngineIncompatibleError: it is for another device or library; no verdict either.
    """
    started = time.monotonic()
    result = _ProofRun(request, events).run()
    duration_s = time.monotonic() - started - events.waited_s
    proof = result.proof.model_copy(update={"duration_s": duration_s})
    if proof.outcome is ProofOutcome.FAILED:
        # As of one that could not run: a library keeps the words of a full disk, or none.
        _check_room(ProofError(proof.reason), request)
    return result.model_copy(update={"proof": proof})


def _check_room(error: Exception, request: ProofRequest) -> None:
    if is_of_full_disk(error, request.cache_dir):
        raise ProofError(f"no verdict while a disk is full: {error}; free disk space") from error


class _ProofRun:
    """State of one proof."""

    def __init__(self, request: ProofRequest, events: Events) -> None:
        self._request = request
        self._events = events
        self._platform = request.device.parsed_generation.platform
        self._torch_device = "cuda" if self._platform is Platform.CUDA else "cpu"
        # What its builder warned of first, then what its loader does.
        self._findings = list(request.manifest.findings)

    def run(self) -> ProofResult:
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
                _check_room(error, self._request)
                verdict = ProofVerdict(reason=f"the engine failed: {error}")
                return ProofResult(proof=self._proof(verdict))
            with memory_growth(self._platform) as eager_growth:
                eager = self._opened_eager()
            reference = self._opened_reference(eager)
            verdict = ProofVerdict(reason="")
            if self._request.is_judged:
                self._events.line(f"comparing with {reference.name}")
                verdict = judge(engine, reference, self._claim(), self._events.line)
            answers = [] if verdict.reason else self._answers(engine)
        proof = self._proof(verdict).model_copy(
            update={
                "peak_memory_bytes": engine_growth.num_bytes,
                "eager_peak_memory_bytes": eager_growth.num_bytes,
            }
        )
        if verdict.reason:
            failed = proof.model_copy(update={"worst": self._worst(verdict)})
            result = ProofResult(proof=failed)
        else:
            result = self._timed_proof(proof, engine, reference.baseline, answers)
        engine.close()
        return result

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
            held_out=_read_samples(request.held_out_path),
            # The same whenever this engine is proven, another one for every other engine.
            seed=int(request.manifest.key.digest()[:12], 16),
            master_path=request.master_path,
        )

    def _timed(self) -> list[Sample]:
        request = self._request
        return timed_samples(request.master, request.recipe, request.manifest.buckets)

    def _answers(self, engine: Model) -> list[dict[str, Array]]:
        return [engine.run(sample.inputs) for sample in self._timed()]

    def _timed_proof(
        self, proof: Proof, engine: Model, eager: Model, answers: Sequence[Mapping[str, Array]]
    ) -> ProofResult:
        """The proof with the curve of the engine beside eager, the fallback and the best so far."""
        request = self._request
        timed = time_engines(
            request,
            Contender(model=engine, held_bytes=proof.peak_memory_bytes),
            Contender(model=eager, held_bytes=proof.eager_peak_memory_bytes),
            self._events,
        )
        with beside_others(request.cache_dir, self._events), self._events.stage(Stage.PROVE):
            reason = self._changed(self._answers(engine), answers)
        digest = request.manifest.key.digest()
        found = {
            "outcome": ProofOutcome.FAILED if reason else proof.outcome,
            "reason": reason,
            "timings": tuple(shape.timing(digest) for shape in timed.shapes),
            "fallback": timed.fallback,
            "kernels": timed.kernels,
        }
        return ProofResult(proof=proof.model_copy(update=found), timed=timed)

    def _changed(
        self, found: Sequence[Mapping[str, Array]], before: Sequence[Mapping[str, Array]]
    ) -> str:
        """Whether the many runs that were timed changed an answer, in words."""
        request = self._request
        for sample, *answers in zip(self._timed(), found, before, strict=True):
            if words := change(request.master, request.recipe, sample, *answers):
                return f"after many runs, {words}"
        return ""

    def _proof(self, verdict: ProofVerdict) -> Proof:
        request = self._request
        key = request.manifest.key
        hint = ""
        if key.kind.pads_to_largest(is_cpu=self._platform is Platform.CPU):
            hint = padding_hint(verdict.checks, key.buckets, request.master, request.recipe)
        judged = ProofOutcome.PASSED if request.is_judged else ProofOutcome.NOT_RUN
        return Proof(
            outcome=ProofOutcome.FAILED if verdict.reason else judged,
            reason=verdict.reason + hint,
            reference=verdict.reference,
            device=request.device,
            checks=verdict.checks,
            tasks=verdict.tasks,
            code=proof_code(),
            samples=dict(verdict.samples),
            notes=verdict.notes,
            columns=verdict.columns,
            agreements=verdict.agreements,
            power=verdict.power,
            findings=tuple(self._findings),
            created_at=timestamp(),
        )


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
