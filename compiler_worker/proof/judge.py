"""The proof of one engine: equal to its reference over every bucket, or why not."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from compiler_worker.inputs.given_samples import given_samples
from compiler_worker.inputs.integer_draws import undescribed
from compiler_worker.inputs.mask_draws import right_padded
from compiler_worker.inputs.sample_sizes import edge_sizes
from compiler_worker.inputs.sampling import Sample, SampleVariant, proof_samples
from compiler_worker.measures.answer_sizes import typical_sizes
from compiler_worker.measures.comparison import has_numbers, is_finite_where
from compiler_worker.measures.ranking import check_ranking
from compiler_worker.measures.task_scores import failed_task
from compiler_worker.measures.tasks import TaskSamples, check_tasks
from compiler_worker.measures.tolerances import tolerance_for
from compiler_worker.progress import Progress, no_progress
from compiler_worker.proof.claim import Claim, ProofVerdict, sizes_text
from compiler_worker.proof.comparing import Comparing, announced
from compiler_worker.proof.nonfinite_check import check_nonfinite
from compiler_worker.proof.power import power_check
from compiler_worker.proof.sabotages import Sabotage
from compiler_worker.proof.same_answers import same_answers
from compiler_worker.proof.spoilt_model import SpoiltModel
from compiler_worker.references.agreement import Errors, eager_errors
from compiler_worker.references.blame import agreed, without_import
from compiler_worker.references.models import Model
from compiler_worker.references.reference import Reference
from services.contracts.errors import EngineError, InvalidRequestError, ProofError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import TaskCheck
from services.contracts.selection.proof_checks import PowerCheck

_EXTREMES = {
    SampleVariant.LARGE: "eight times the usual values",
    SampleVariant.SMALL: "values of a 64th of the usual size",
    SampleVariant.ZERO: "zeros",
}


def judge(
    engine: Model, reference: Reference, claim: Claim, report: Progress = no_progress
) -> ProofVerdict:
    """Compare an engine with its reference, and measure what the comparison would have seen.

    Values, datatypes, columns, repeatability and the recipe's tasks; then copies of the
    reference's own answers, spoilt in known ways, under the same bounds.

    Args:
        engine: under test, loaded.
        reference: whose outputs are right.
        claim: what the engine is to be equal in: master, recipe, precision, buckets.
        report: called with each step in words.

    Raises:
        ProofError: the reference itself cannot be trusted or run; no verdict on the engine.
    """
    reference, samples, notes = _samples(claim, reference)
    reported = announced(samples, "computing the reference", report)
    typical = typical_sizes(reference.model, claim.master, claim.recipe, samples)
    errors = eager_errors(reference, claim.master, claim.recipe, reported, typical)
    trusted = agreed(reference, claim, samples, errors, typical)
    if trusted.eager_outputs is None:
        # Nothing may come from an import that is wrong: neither wide bounds nor ties of ids.
        errors = {}
        claim = replace(claim, master_path=None)
    verdict = compared(engine, trusted, claim, samples, errors, report)
    if not verdict.reason:
        report("running it with NaN and Inf in its inputs")
        found = check_nonfinite(engine, trusted, claim, samples)
        verdict = replace(verdict, reason=found.fault, notes=(*verdict.notes, *found.notes))
    return replace(verdict, notes=(*notes, *verdict.notes), reference=trusted.name)


def compared(
    engine: Model,
    reference: Reference,
    claim: Claim,
    samples: Sequence[Sample],
    errors: Mapping[str, Errors],
    report: Progress,
) -> ProofVerdict:
    """Compare with a reference that is trusted, and measure what that would have refused.

    Args:
        engine: under test, loaded.
        reference: whose outputs are right.
        claim: what the engine is to be equal in.
        samples: that the reference computes.
        errors: of eager float32 by output; empty without an import.
        report: called with each step in words.

    Raises:
        ProofError: the reference cannot be run.
    """
    allowed = {
        spec.name: tolerance_for(claim.precision, claim.recipe, *errors.get(spec.name, Errors()))
        for spec in claim.master.outputs
    }
    comparing = Comparing(engine, reference, claim, allowed)
    try:
        comparing.run(samples, report)
        tasks = _check_tasks(engine, reference.model, claim, samples)
    except EngineError as error:
        return ProofVerdict(reason=f"the engine failed: {error}", worst=comparing.worst)
    verdict = replace(comparing.verdict(tasks), samples=_counted(samples))
    if verdict.reason:
        return verdict
    # Power is of a proof that passed: what refused one engine need not show that it refuses others.
    report("measuring what the proof would have refused")
    power = _power(comparing, reference.model, claim, samples)
    blindness = _blindness(power, claim.precision)
    reason = blindness or same_answers(claim, comparing.answered.kept)
    return replace(verdict, power=power, reason=reason)


def _counted(samples: Sequence[Sample]) -> dict[str, int]:
    counts = Counter(sample.variant.value for sample in samples)
    return {
        variant.value: counts[variant.value] for variant in SampleVariant if counts[variant.value]
    }


def _samples(claim: Claim, reference: Reference) -> tuple[Reference, list[Sample], list[str]]:
    """The reference that computes them, drawn and given ones, and what is left out."""
    drawn = proof_samples(claim.master, claim.recipe, claim.buckets, engine_seed=claim.seed)
    samples = []
    notes = undescribed(claim.master, claim.recipe)
    notes += [
        f"no pads were drawn before or between valid positions of '{name}': its calibration set, "
        "or the recipe, has none there; padding_side: either draws them"
        for name in right_padded(claim.master, claim.recipe)
    ]
    edges = [sizes for bucket in claim.buckets for sizes in edge_sizes(bucket)]
    for sample in drawn:
        # Scales were taken from usual values: beyond those eight bits end.
        if claim.precision.is_calibrated and sample.variant.is_extreme:
            continue
        try:
            wanted = reference.model.run(sample.inputs)
        except ProofError as error:
            if remaining := without_import(reference, sample, error):
                return _samples(claim, remaining)
            # The edges are what the recipe promises to callers; sizes between them are drawn by us.
            if sample.sizes in edges:
                raise
            # Some models compute only some sizes, multiples of a stride for one.
            notes.append(f"the model itself does not compute {sizes_text(sample.sizes)}: {error}")
            continue
        if not sample.variant.is_extreme or is_extreme_in_range(reference, sample, wanted):
            samples.append(sample)
        else:
            values = _EXTREMES[sample.variant]
            notes.append(f"{values} overflow in the master itself: not compared")
    given = {SampleVariant.GIVEN: claim.samples, SampleVariant.TRAFFIC: claim.held_out}
    for variant, real in given.items():
        try:
            samples += given_samples(real, claim.master, claim.recipe, claim.buckets, variant)
        except InvalidRequestError as error:
            notes.append(f"the {variant} samples are not compared: {error}")
    return reference, samples, notes


def is_extreme_in_range(reference: Reference, sample: Sample, wanted: Mapping[str, Array]) -> bool:
    """Whether extreme values give numbers in the master's own types too.

    What overflows float32 and not float64 is no fault of an engine, nor of the importer.

    Args:
        reference: has the witness.
        sample: of extreme values.
        wanted: the reference's outputs at it by name, of any shape.
    """
    if not has_numbers(wanted):
        return False
    own = reference.witness.run(sample.inputs) if reference.witness else wanted
    return all(is_finite_where(own[name], array) for name, array in wanted.items())


def _check_tasks(
    engine: Model,
    reference: Model,
    claim: Claim,
    samples: Sequence[Sample],
) -> tuple[TaskCheck, ...]:
    judged_on = TaskSamples(
        master=claim.master,
        recipe=claim.recipe,
        buckets=claim.buckets,
        real=claim.samples,
        drawn=samples,
    )
    found = check_tasks(engine, reference, judged_on)
    task = claim.recipe.ranking
    if task is None:
        return found
    try:
        ranking = check_ranking(
            engine, reference, claim.samples, claim.master, claim.recipe, claim.buckets
        )
    except InvalidRequestError as error:
        ranking = failed_task(task, str(error))
    return (ranking, *found)


def _power(
    comparing: Comparing,
    reference: Model,
    claim: Claim,
    samples: Sequence[Sample],
) -> tuple[PowerCheck, ...]:
    def passes_tasks(output: str, sabotage: Sabotage) -> bool:
        spoilt = SpoiltModel(reference, comparing.judges[output], sabotage)
        tasks = _check_tasks(spoilt, reference, claim, samples)
        return all(task.is_passed for task in tasks)

    kept = comparing.answered.kept
    checks = (power_check(judge, kept, passes_tasks) for judge in comparing.judges.values())
    return tuple(check for check in checks if check is not None)


def _blindness(power: Sequence[PowerCheck], precision: Precision) -> str:
    """Why a proof that found no fault is none, "" when it would have found one."""
    blind = [check for check in power if check.unaccepted]
    return "; ".join(
        f"the proof is blind to {', '.join(check.unaccepted)} on output '{check.output}': an "
        "engine with such a fault would have passed its bounds; tighten them (tolerances, a task, "
        "samples that differ), or accept it in the recipe: "
        f"outputs: {{{check.output}: {{accept_blind: {{{precision}: {list(check.unaccepted)}}}}}}}"
        for check in blind
    )
