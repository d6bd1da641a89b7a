"""Whether proofs would refuse rounding alone, in fp16 and in bf16: found when a model is added.

The graph that compilers begin with is proven in an engine's place, by the same code. Engines round
at other places, and may be nearer: two thirds of what the graph is off have to be refused.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np

from compiler_worker.children.requests import VerdictRequest
from compiler_worker.inputs.sample_sizes import timed_sizes
from compiler_worker.inputs.sampling import Sample
from compiler_worker.model_checks.served_master import has_room
from compiler_worker.progress import Progress
from compiler_worker.proof.claim import Claim
from compiler_worker.proof.judge import compared, is_extreme_in_range
from compiler_worker.proof.power import Answered
from compiler_worker.proof.same_answers import same_answers
from compiler_worker.references.models import Model
from compiler_worker.references.reference import Reference
from compiler_worker.references.reference_cache import CachedModel, reference_folder
from services.contracts.errors import ProofError, UnsupportedGraphError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.precisions import admitted_precisions

# Of what the graph is off, so much any engine is: MiniLM's is beyond a bound by 1.2 times, and has
# an engine that is proven. That of ViT-S passes so, and its engine was refused (advice_zoo_cpu).
AT_LEAST = 1 / 1.5
# Of the seconds for samples, those for other sizes than the usual ones, in each precision.
_SHARE_FOR_OTHERS = 0.125
# Times the seconds for samples, after which nothing is begun: a child that is ended in the middle
# leaves no verdict at all.
_LATEST = 4


def check_rounding(
    request: VerdictRequest,
    reference: Reference,
    samples: Sequence[Sample],
    began_s: float,
    report: Progress,
) -> tuple[dict[Precision, str], str]:
    """Prove the typed graphs at usual sizes of the first bucket, and at more while there is time.

    Args:
        request: has the master, its recipe and the seconds for samples.
        reference: whose outputs are right.
        samples: that it computes.
        began_s: when the request was taken, by the monotonic clock.
        report: given what is compared.

    Returns:
        By precision why it would be refused, those that would not left out; and why some were not
        tried, "" where all were that the recipe admits.
    """
    usual = timed_sizes(request.buckets[0])[0]
    ordered = sorted(_comparable(reference, samples), key=lambda each: each.sizes != usual)
    admitted = admitted_precisions(request.recipe, has_calibration=False)
    answered = Answered()
    for sample in ordered:
        answered.offer(sample, reference.model.run(sample.inputs))
    refused = dict[Precision, str]()
    untried = []
    for precision in (each for each in (Precision.FP16, Precision.BF16) if each in admitted):
        report(f"rounding to {precision} beside float64")
        claim = _claim(request, precision)
        if not ordered or time.monotonic() - began_s >= _LATEST * request.samples_s:
            untried.append(f"{precision}: no time was left")
        elif not has_room(request.master_path):
            untried.append(f"{precision}: the memory of this host does not hold the weights twice")
        # Of every precision, float32 too: that is no matter of rounding.
        elif same := same_answers(claim, answered.kept):
            untried.append(f"{precision}: {same}")
        else:
            try:
                if reason := _refusal(request, reference, claim, ordered, report):
                    refused[precision] = reason
            except (ProofError, UnsupportedGraphError) as error:
                untried.append(f"{precision}: {error}")
    return refused, "; ".join(untried)


def _comparable(reference: Reference, samples: Sequence[Sample]) -> Iterator[Sample]:
    for sample in samples:
        with suppress(ProofError):
            wanted = reference.model.run(sample.inputs)
            if not sample.variant.is_extreme or is_extreme_in_range(reference, sample, wanted):
                yield sample


def _claim(request: VerdictRequest, precision: Precision) -> Claim:
    return Claim(
        master=request.master,
        # It is of real samples, which are not run here.
        recipe=request.recipe.model_copy(update={"ranking": None}),
        precision=precision,
        buckets=request.buckets,
        master_path=request.master_path,
    )


def _refusal(
    request: VerdictRequest,
    reference: Reference,
    claim: Claim,
    samples: Sequence[Sample],
    report: Progress,
) -> str:
    # Imports torch, as the parent of this process must not.
    from compiler_worker.references.rounded import RoundedModel

    master = claim.master
    opened = RoundedModel(request.master_path, master, claim.precision)
    # A proof runs some samples twice.
    folder = reference_folder(request.folder / "cache")
    model = CachedModel(f"{master.digest} rounded to {claim.precision}", lambda: opened, folder)
    until_s = time.monotonic() + _SHARE_FOR_OTHERS * request.samples_s
    ran = list(_run_in_time(model, samples, until_s))
    return compared(_Nearer(model, reference.model), reference, claim, ran, {}, report).reason


class _Nearer:
    """A model whose answers are as far from the reference's as those of a better engine."""

    def __init__(self, model: Model, reference: Model) -> None:
        self._model = model
        self._reference = reference

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        wanted = self._reference.run(inputs)
        found = self._model.run(inputs)
        return {name: _nearer(array, wanted[name]) for name, array in found.items()}


def _nearer(found: Array, wanted: Array) -> Array:
    """Floats a part of the way; all else as it is."""
    if found.dtype.kind != "f" or found.shape != wanted.shape:
        return found
    # What overflows stays so.
    with np.errstate(invalid="ignore", over="ignore"):
        nearer = (wanted + AT_LEAST * (found - wanted)).astype(found.dtype)
    return np.where(found == wanted, found, nearer)


def _run_in_time(model: Model, samples: Sequence[Sample], until_s: float) -> Iterator[Sample]:
    """Those of the first one's sizes however long they take; of others what there is time for."""
    for sample in samples:
        if sample.sizes == samples[0].sizes or time.monotonic() < until_s:
            model.run(sample.inputs)
            yield sample
