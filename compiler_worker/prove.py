"""The proof of one engine: equal to its reference over every bucket, or why not."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from compiler_worker.comparison import compare_output
from compiler_worker.distance import INFINITELY_FAR, Distance
from compiler_worker.models import Model
from compiler_worker.progress import Progress, tell_nobody
from compiler_worker.ranking import check_ranking
from compiler_worker.reference import Reference, eager_errors, require_agreement
from compiler_worker.sampling import Sample, proof_samples
from compiler_worker.tasks import TaskSamples, check_tasks
from compiler_worker.tolerances import DEFAULT_TOLERANCES, tolerance_for
from compiler_worker.worst_sample import Meeting, WorstSample
from services.contracts.errors import EngineError, InvalidRequestError
from services.contracts.kinds import Precision
from services.contracts.manifest import MasterRecord, OutputCheck, TaskCheck
from services.contracts.recipe import Bucket, Recipe, Tolerance
from services.contracts.tensors import Array

logger = logging.getLogger(__name__)

_MAX_FAULTS_TOLD = 3


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What an engine claims to be: this master, in this precision, over these buckets.

    Attributes:
        samples: real inputs for the recipe's task; None when the model version has none.
    """

    master: MasterRecord
    recipe: Recipe
    precision: Precision
    buckets: tuple[Bucket, ...]
    samples: Mapping[str, Array] | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Outcome of all comparisons.

    Attributes:
        reason: the first faults in words, "" when there are none.
        worst: the worst sample that was met; None when nothing was compared.
    """

    reason: str
    checks: tuple[OutputCheck, ...] = ()
    tasks: tuple[TaskCheck, ...] = ()
    worst: WorstSample | None = None


def judge(
    engine: Model, reference: Reference, claim: Claim, report: Progress = tell_nobody
) -> Verdict:
    """Compare an engine with its reference: values, datatypes, repeatability, task.

    Raises:
        ProofError: the reference itself cannot be trusted or run; says nothing about the
            engine.
    """
    samples = list(proof_samples(claim.master, claim.recipe, claim.buckets))
    told = _told(samples, "computing the reference", report)
    errors = eager_errors(reference, claim.master, claim.recipe, told)
    require_agreement(reference, claim.master, claim.recipe, samples, errors)
    allowed = {
        spec.name: tolerance_for(claim.precision, claim.recipe, errors.get(spec.name))
        for spec in claim.master.outputs
    }
    worst = WorstSample(allowed)
    try:
        checks = check_outputs(engine, reference.model, claim, samples, allowed, worst, report)
        tasks = _check_tasks(engine, reference.model, claim, samples, allowed)
    except EngineError as error:
        return Verdict(reason=f"the engine failed: {error}", worst=worst)
    return Verdict(reason=_reason(checks, tasks), checks=checks, tasks=tasks, worst=worst)


def check_outputs(
    engine: Model,
    reference: Model,
    claim: Claim,
    samples: Sequence[Sample],
    allowed: Mapping[str, Tolerance],
    worst: WorstSample,
    report: Progress = tell_nobody,
) -> tuple[OutputCheck, ...]:
    """Compare every output at every sample; one check per bucket, sizes and output.

    Raises:
        EngineError: the engine failed; says at which bucket and sizes.
    """
    checks: dict[tuple[str, str, str], OutputCheck] = {}
    for sample in _told(samples, "comparing", report):
        found = _run(engine, sample, worst)
        again = _run(engine, sample, worst) if _is_repeated(sample, claim.buckets) else found
        wanted = reference.run(sample.inputs)
        here = tuple(
            _check_output(name, claim, sample, (found, again), wanted, tolerance)
            for name, tolerance in allowed.items()
        )
        worst.meet(Meeting(sample=sample, checks=here, wanted=wanted, found=found))
        for name, check in zip(allowed, here, strict=True):
            key = (sample.bucket, str(sorted(sample.sizes.items())), name)
            checks[key] = _union(checks[key], check) if key in checks else check
    return tuple(checks.values())


def _told(samples: Sequence[Sample], what: str, report: Progress) -> Iterator[Sample]:
    """The samples, each announced: a person sees how far a long proof is."""
    for number, sample in enumerate(samples, 1):
        report(f"{what}, {number} of {len(samples)}: {sample.bucket} at {_text(sample.sizes)}")
        yield sample


def _is_repeated(sample: Sample, buckets: Sequence[Bucket]) -> bool:
    """Whether the engine runs twice: at the least, usual and largest sizes of a bucket."""
    bucket = next(bucket for bucket in buckets if bucket.label == sample.bucket)
    ends = ({n: getattr(r, end) for n, r in bucket.dims.items()} for end in ("min", "opt", "max"))
    return sample.sizes in ends


def _run(engine: Model, sample: Sample, worst: WorstSample) -> dict[str, Array]:
    try:
        return engine.run(sample.inputs)
    except (EngineError, InvalidRequestError) as error:
        worst.meet(Meeting(sample=sample, checks=(_no_answer(sample, str(error)),)))
        raise EngineError(f"bucket {sample.bucket} at {_text(sample.sizes)}: {error}") from error


def _no_answer(sample: Sample, words: str) -> OutputCheck:
    return OutputCheck(
        bucket=sample.bucket, sizes=sample.sizes, output="", fault=words, **vars(INFINITELY_FAR)
    )


def _check_output(
    name: str,
    claim: Claim,
    sample: Sample,
    runs: tuple[Mapping[str, Array], Mapping[str, Array]],
    wanted: Mapping[str, Array],
    allowed: Tolerance,
) -> OutputCheck:
    spec = next(spec for spec in claim.master.outputs if spec.name == name)
    first, second = runs
    result = compare_output(spec, claim.recipe, sample.inputs, first, wanted, allowed)
    fault = result.fault
    if not fault:
        # Bit-equal runs pass at once; others may differ as fp32 sums in another order do.
        repeat = compare_output(
            spec, claim.recipe, sample.inputs, second, first, DEFAULT_TOLERANCES[Precision.FP32]
        )
        fault = f"two runs on the same inputs differ: {repeat.fault}" if repeat.fault else ""
    return OutputCheck(
        bucket=sample.bucket, sizes=sample.sizes, output=name, fault=fault, **vars(result.distance)
    )


def _union(one: OutputCheck, other: OutputCheck) -> OutputCheck:
    largest = _distance(one).union(_distance(other))
    return one.model_copy(update={**vars(largest), "fault": one.fault or other.fault})


def _distance(check: OutputCheck) -> Distance:
    return Distance(
        rel_l2=check.rel_l2, max_abs=check.max_abs, cosine_distance=check.cosine_distance
    )


def _check_tasks(
    engine: Model,
    reference: Model,
    claim: Claim,
    samples: Sequence[Sample],
    allowed: Mapping[str, Tolerance],
) -> tuple[TaskCheck, ...]:
    judged_on = TaskSamples(
        master=claim.master,
        recipe=claim.recipe,
        buckets=claim.buckets,
        real=claim.samples,
        drawn=samples,
    )
    found = check_tasks(engine, reference, judged_on, claim.precision, allowed)
    return (*_check_ranking(engine, reference, claim, allowed), *found)


def _check_ranking(
    engine: Model, reference: Model, claim: Claim, allowed: Mapping[str, Tolerance]
) -> tuple[TaskCheck, ...]:
    task = claim.recipe.ranking
    if task is None:
        return ()
    try:
        tolerance = allowed.get(task.output, DEFAULT_TOLERANCES[claim.precision])
        return (
            check_ranking(
                engine, reference, claim.samples, claim.master, claim.recipe, claim.buckets,
                tolerance,
            ),
        )  # fmt: skip
    except InvalidRequestError as error:
        name = f"top{task.top_k}_overlap:{task.output}"
        failed = TaskCheck(
            name=name, value=0.0, bound=task.min_overlap, is_passed=False, detail=str(error)
        )
        return (failed,)


def _reason(checks: Sequence[OutputCheck], tasks: Sequence[TaskCheck]) -> str:
    faults = [
        f"output '{c.output}', bucket {c.bucket} at {_text(c.sizes)}: {c.fault}"
        for c in checks
        if c.fault
    ]
    faults += [
        f"task {t.name}: {t.value:.4f} found, {t.bound:.4f} wanted ({t.detail})"
        for t in tasks
        if not t.is_passed
    ]
    more = len(faults) - _MAX_FAULTS_TOLD
    told = faults[:_MAX_FAULTS_TOLD] + ([f"and {more} more"] if more > 0 else [])
    return "; ".join(told)


def _text(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in sorted(sizes.items())) or "its fixed shape"
