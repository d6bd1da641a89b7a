"""The importer's graph, which fallbacks run, beside ONNX Runtime: inside a child process.

Both compute in float32 here, so neither can be blamed for a decision that only float64 changes;
float64 shows how much of a difference is rounding. Where they differ, ONNX's evaluator runs as
in a proof: where it sides with the import, it takes ONNX Runtime's place.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from compiler_worker.children.child import Events, limit_threads
from compiler_worker.children.requests import VerdictRequest
from compiler_worker.inputs.sampling import Sample, proof_samples
from compiler_worker.measures.answer_sizes import typical_sizes
from compiler_worker.measures.comparison import has_numbers
from compiler_worker.measures.default_tolerances import DEFAULT_TOLERANCES
from compiler_worker.measures.tolerances import EAGER_FACTOR, together_for, tolerance_for
from compiler_worker.model_checks.rounding_check import check_rounding
from compiler_worker.progress import Progress
from compiler_worker.proof.claim import Claim, reason_of, sizes_text
from compiler_worker.proof.comparing import Comparing
from compiler_worker.references.agreement import Errors, eager_errors
from compiler_worker.references.blame import agreed
from compiler_worker.references.models import Model, OrtModel
from compiler_worker.references.reference import (
    Reference,
    evaluator_name,
    open_eager,
    open_reference,
)
from services.contracts.errors import EngineError, ProofError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Recipe, Tolerance
from services.contracts.selection.fallback_verdict import FallbackVerdict
from services.contracts.store.kept_answers import KeptAnswer, write_answers
from services.engines.fallback.fallback_program import importer_code

ANSWERS_FILE = "answers.npz"
# However long each takes: the smallest alone may be where nothing goes wrong.
_MIN_SAMPLES = 2
_MAX_KEPT = 4
_MAX_KEPT_BYTES = 2**20
# Where even the smallest sample is larger, as of images.
_MAX_LONE_BYTES = 32 * 2**20


def verdict_one(request: VerdictRequest, events: Events) -> FallbackVerdict:
    """The inside of the child: compare, and write the answers that are kept."""
    limit_threads(request.num_threads)
    path = request.master_path
    master = request.master
    eager = open_eager(path, master, "cpu")
    if isinstance(eager, str):
        return without_torch(f"the importer refuses the graph: {eager}", path, master)
    cache_dir = request.folder / "cache"
    reference = open_reference(
        path, master, eager, cache_dir, device="cpu", num_threads=request.num_threads
    )
    if reference.witness is None or reference.eager_outputs is None:
        return FallbackVerdict(unknown=reference.name)
    return _Judge(request, reference, reference.witness, reference.eager_outputs).verdict(
        events.line
    )


def without_torch(reason: str, path: Path, master: MasterRecord) -> FallbackVerdict:
    """The verdict on a master that torch cannot serve: ONNX Runtime does, if it can.

    Args:
        reason: why torch cannot run it.
        path: the master's `model.onnx`.
        master: its record.
    """
    try:
        OrtModel.open(path, master)
    except ProofError as error:
        return FallbackVerdict(
            unknown=f"{reason}; {error}; so no fallback can serve this model: it is unavailable on "
            "a generation until an engine of another kind is proven there (smelt why says whether "
            "one is); export it with ops and types that ONNX Runtime has"
        )
    return FallbackVerdict(refused=reason, code=importer_code())


class _Judge:
    """The import beside its witness."""

    def __init__(
        self, request: VerdictRequest, reference: Reference, witness: Model, eager: Model
    ) -> None:
        self._request = request
        self._master = request.master
        # Its tolerances are for engines, which may be meant to differ.
        self._recipe = request.recipe.model_copy(update={"tolerances": {}})
        self._reference = reference
        self._witness = witness
        self._eager = eager
        self._began_s = time.monotonic()

    def verdict(self, report: Progress) -> FallbackVerdict:
        samples = list(self._affordable(report))
        if not samples:
            name = self._reference.witness_name
            return FallbackVerdict(unknown=f"{name} answers none of the samples with numbers")
        errors, typical = self._rounding(samples)
        refuted, faulty = self._compared(samples, errors, report)
        # Opened only where they differ: the evaluator is slow.
        if refuted and self._has_wrong_witness(samples, errors, typical):
            refuted, faulty = self._compared(samples, errors, report)
        kept = self._kept(samples, faulty)
        if kept:
            write_answers(self._request.folder / ANSWERS_FILE, kept)
        # Of a graph that is wrong itself roundings say nothing.
        of_rounding = self._request, self._reference, samples, self._began_s, report
        rounding, untried = ({}, "") if refuted else check_rounding(*of_rounding)
        return FallbackVerdict(
            refuted=refuted,
            rounding=rounding,
            rounding_untried=untried,
            witness=self._reference.witness_name,
            code=importer_code(),
            num_samples=len(samples),
            allowed={
                s.name: _allowed_elsewhere(errors.get(s.name, Errors()))
                for s in self._master.outputs
            },
        )

    def _affordable(self, report: Progress) -> Iterator[Sample]:
        """Samples that the witness answers, while there is time."""
        until = math.inf
        num_samples = 0
        drawn = proof_samples(self._master, self._recipe, self._request.buckets)
        for sample in _middle_early(sorted(drawn, key=lambda s: _num_bytes(s.inputs))):
            if num_samples >= _MIN_SAMPLES and time.monotonic() > until:
                return
            where = f"{sample.bucket} at {sizes_text(sample.sizes)}"
            report(f"the fallback's graph beside ONNX Runtime: {where}")
            # What the master itself does not compute says nothing of its import.
            with suppress(ProofError):
                if has_numbers(self._witness.run(sample.inputs)):
                    self._compute(sample)
                    num_samples += 1
                    # Models are opened by their first run, which takes longer than many others.
                    until = min(until, time.monotonic() + self._request.samples_s)
                    yield sample

    def _compute(self, sample: Sample) -> None:
        """Have the imports' answers on disk, within the time for samples."""
        for model in (self._eager, self._reference.model, *self._reference.shifted):
            with suppress(ProofError):
                model.run(sample.inputs)

    def _rounding(self, samples: Sequence[Sample]) -> tuple[dict[str, Errors], dict[str, float]]:
        """How far float32 itself is from float64, and usual sizes; none where the import fails."""
        try:
            of_reference = self._reference, self._master, self._recipe, samples
            typical = typical_sizes(self._reference.model, self._master, self._recipe, samples)
            return eager_errors(*of_reference, typical), typical
        except ProofError:
            return {}, {}

    def _has_wrong_witness(
        self,
        samples: Sequence[Sample],
        errors: Mapping[str, Errors],
        typical: Mapping[str, float],
    ) -> bool:
        """Whether the evaluator sides with the import; it is the witness from then on."""
        try:
            found = agreed(self._reference, self._claim(), samples, errors, typical)
        except ProofError:
            return False
        if found.model is not self._reference.model or found.witness is self._witness:
            return False
        assert found.witness is not None
        self._reference = replace(found, witness_name=evaluator_name())
        self._witness = found.witness
        return True

    def _claim(self) -> Claim:
        return Claim(
            master=self._master,
            recipe=self._recipe,
            precision=Precision.FP32,
            buckets=self._request.buckets,
            master_path=self._request.master_path,
        )

    def _compared(
        self, samples: Sequence[Sample], errors: Mapping[str, Errors], report: Progress
    ) -> tuple[str, list[dict[str, int]]]:
        """The first faults in words, and at which sizes there are any."""
        allowed = {
            spec.name: tolerance_for(Precision.FP32, self._recipe, *errors.get(spec.name, Errors()))
            for spec in self._master.outputs
        }
        # The witness is the reference here and the import is judged: whatever differs is of one of
        # them.
        beside = replace(
            self._reference, model=self._witness, witness=None, eager_outputs=None, shifted=()
        )
        comparing = Comparing(self._eager, beside, self._claim(), allowed)
        try:
            comparing.run(samples, report)
        except (EngineError, ProofError) as error:
            return f"it fails where {self._reference.witness_name} answers: {error}", []
        found = comparing.verdict(())
        faulty = [check for check in found.checks if check.fault]
        # One says enough: a wrong import is wrong at most sizes.
        words = reason_of(faulty[:1], () if faulty else found.agreements, ())
        more = f"; and at {len(faulty) - 1} other sizes" if faulty[1:] else ""
        return words + more, [check.sizes for check in faulty]

    def _kept(
        self, samples: Sequence[Sample], faulty: Sequence[Mapping[str, int]]
    ) -> list[KeptAnswer]:
        """Those that showed a fault first, then the largest that fit into _MAX_KEPT_BYTES."""
        answers = [
            (sample.sizes not in faulty, KeptAnswer(inputs=sample.inputs, outputs=outputs))
            for sample in samples
            if all(sample.sizes.values()) and (outputs := self._witness.run(sample.inputs))
        ]
        kept = list[KeptAnswer]()
        room = _MAX_KEPT_BYTES
        for _, answer in sorted(answers, key=lambda each: (each[0], -each[1].num_bytes)):
            if answer.num_bytes <= room and len(kept) < _MAX_KEPT:
                kept.append(answer)
                room -= answer.num_bytes
        least = min((answer for _, answer in answers), key=lambda a: a.num_bytes, default=None)
        if not kept and least is not None and least.num_bytes <= _MAX_LONE_BYTES:
            return [least]
        return kept


def _allowed_elsewhere(errors: Errors) -> Tolerance:
    """The bounds on another device, whose sums have another order: ten times wider, as fp16's.

    They are for faults of a compiler or a device, which are far beyond.
    """
    here = tolerance_for(Precision.FP32, Recipe(), *errors)
    most = DEFAULT_TOLERANCES[Precision.FP16]
    return Tolerance(
        # What the master's own roundings make of a shift may be more.
        rel_l2=max(min(here.rel_l2 * EAGER_FACTOR, most.rel_l2), here.rel_l2),
        max_abs=max(min(here.max_abs * EAGER_FACTOR, most.max_abs), here.max_abs),
        cosine_distance=max(most.cosine_distance, here.cosine_distance),
        agreement=together_for(Precision.FP32, Recipe()).agreement,
    )


def _middle_early(by_size: list[Sample]) -> list[Sample]:
    """The smallest, the middle one, and then on from small to large.

    What is wrong at most sizes may be right at 1, and the largest may take too long.
    """
    rest = by_size[1:]
    middle = len(rest) // 2
    return [*by_size[:1], *rest[middle:][:1], *rest[:middle], *rest[middle + 1 :]]


def _num_bytes(arrays: Mapping[str, Array]) -> int:
    return sum(array.nbytes for array in arrays.values())
