"""An engine beside its reference, sample by sample."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from compiler_worker.inputs.sample_sizes import timed_sizes
from compiler_worker.inputs.sampling import Sample
from compiler_worker.measures.distance import INFINITELY_FAR, Comparison, Distance
from compiler_worker.measures.tolerances import together_for
from compiler_worker.progress import Progress
from compiler_worker.proof.claim import Claim, ProofVerdict, reason_of, sizes_text
from compiler_worker.proof.id_values import IdValues
from compiler_worker.proof.output_judge import Bounds, OutputJudge
from compiler_worker.proof.power import Answered
from compiler_worker.proof.repeatability import compare_runs
from compiler_worker.proof.worst_sample import FailedRun, WorstSample
from compiler_worker.references.models import Model
from compiler_worker.references.reference import Reference
from services.contracts.errors import EngineError, InvalidRequestError
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import OutputCheck, TaskCheck
from services.contracts.model.recipe import Bucket, Tolerance


class Comparing:
    """An engine beside its reference: each sample, and all of them together.

    Attributes:
        worst: the sample that is farthest off.
        answered: some of the reference's answers.
    """

    def __init__(
        self, engine: Model, reference: Reference, claim: Claim, allowed: Mapping[str, Tolerance]
    ) -> None:
        """Judge every output by its bounds.

        Args:
            engine: what is proven.
            reference: what it is compared with.
            claim: the master, the precision and the buckets that the engine is proven for.
            allowed: tolerance of each output, by its name.
        """
        self._engine = engine
        self._reference = reference
        self._claim = claim
        self._allowed = allowed
        ids = IdValues(claim.master_path, claim.master) if claim.master_path else None
        self.judges = {
            spec.name: OutputJudge.of(
                Bounds(
                    spec=spec,
                    recipe=claim.recipe,
                    precision=claim.precision,
                    allowed=allowed[spec.name],
                    together=together_for(claim.precision, claim.recipe),
                    ids=ids,
                )
            )
            for spec in claim.master.outputs
        }
        self.worst = WorstSample(allowed)
        self.answered = Answered()
        self._checks: dict[tuple[str, str, str], OutputCheck] = {}

    def run(self, samples: Sequence[Sample], report: Progress) -> None:
        """Compare every output at every sample; one check per bucket, sizes and output.

        Each sample whose sizes are the ends of a bucket is run again after another one: what an
        engine leaves in its buffers, or keeps from a first call, is seen then. The first answer
        at usual sizes is held to the end: others of its shape, and as many as a ring of buffers
        has, follow it.

        Raises:
            EngineError: the engine failed; has the bucket and the sizes.
        """
        # Before anything is compared: errors are measured by the usual size of all answers. Models
        # of a reference keep what they computed, so the second run in `_meet` is read from disk.
        for sample in samples:
            wanted = self._reference.model.run(sample.inputs)
            for judge in self.judges.values():
                judge.expect(sample, wanted)
        before: _Answer | None = None
        held: _Answer | None = None
        usual = timed_sizes(self._claim.buckets[0])[0]
        for sample in announced(samples, "comparing", report):
            found = self._run_engine(sample)
            is_right = self._meet(sample, found)
            answer = _Answer(sample, found)
            if before is not None:
                self._repeat(before)
            is_repeated = is_right and _is_repeated(sample, self._claim.buckets)
            before = answer if is_repeated else None
            if held is None and sample.sizes == usual:
                held = answer
        if before is not None:
            # Nothing follows the last sample, so something has to run between its two runs.
            self._run_engine(samples[0])
            self._repeat(before)
        if held is not None:
            self._require_kept(held)

    def verdict(self, tasks: tuple[TaskCheck, ...]) -> ProofVerdict:
        """All checks, with the first faults in words."""
        judges = self.judges.values()
        checks = tuple(self._checks.values())
        columns = tuple(c for judge in judges if (c := judge.column_check()))
        agreements = tuple(a for judge in judges if (a := judge.agreement_check()))
        reason = reason_of(checks, (*columns, *agreements), tasks)
        notes = tuple(filter(None, (judge.note for judge in judges)))
        return ProofVerdict(
            reason=reason or "; ".join(filter(None, (judge.emptiness for judge in judges))),
            checks=checks,
            tasks=tasks,
            columns=columns,
            agreements=agreements,
            worst=self.worst,
            notes=notes,
        )

    def _meet(self, sample: Sample, found: Mapping[str, Array]) -> bool:
        wanted = self._reference.model.run(sample.inputs)
        self.answered.offer(sample, wanted)
        self._run_eager(sample, wanted)
        here = tuple(
            _output_check(sample, name, judge.compare(sample, found, wanted))
            for name, judge in self.judges.items()
        )
        typical = {name: judge.typical(sample) for name, judge in self.judges.items()}
        self.worst.record(
            FailedRun(sample=sample, checks=here, typical=typical, wanted=wanted, found=found)
        )
        self._keep(sample, here)
        return not any(check.fault for check in here)

    def _run_eager(self, sample: Sample, wanted: Mapping[str, Array]) -> None:
        """Collect all outputs of eager float32, where there is an import."""
        if self._reference.eager_outputs is None:
            return
        found = self._reference.eager_outputs.run(sample.inputs)
        for judge in self.judges.values():
            judge.collect(judge.eager, sample, found, wanted)
        for model in self._reference.shifted:
            found = model.run(sample.inputs)
            for judge in self.judges.values():
                judge.collect(judge.shifted, sample, found, wanted)

    def _repeat(self, answer: "_Answer") -> None:
        sample = answer.sample
        found = answer.copies
        again = self._run_engine(sample)
        for spec in self._claim.master.outputs:
            if spec.name not in found:
                continue
            result = compare_runs(spec, self._claim.recipe, sample, again, found)
            if result.fault:
                fault = f"two runs on the same inputs differ: {result.fault}"
                self._keep(sample, (_fault_check(sample, spec.name, fault),))
        self._require_kept(answer)

    def _require_kept(self, answer: "_Answer") -> None:
        fault = "an output array changed after later runs: the engine reuses output memory"
        for name in filter(answer.has_changed, answer.copies):
            self._keep(answer.sample, (_fault_check(answer.sample, name, fault),))

    def _keep(self, sample: Sample, here: Sequence[OutputCheck]) -> None:
        for check in here:
            key = (sample.bucket, str(sorted(sample.sizes.items())), check.output)
            known = self._checks.get(key)
            self._checks[key] = _union(known, check) if known else check

    def _run_engine(self, sample: Sample) -> dict[str, Array]:
        try:
            return _answered(self._engine, sample.inputs)
        except (EngineError, InvalidRequestError) as error:
            self.worst.record(FailedRun(sample=sample, checks=(_no_answer(sample, str(error)),)))
            raise EngineError(
                f"bucket {sample.bucket} at {sizes_text(sample.sizes)}: {error}"
            ) from error


class _Answer:
    """An engine's answer, as it is and as it was when it was given."""

    def __init__(self, sample: Sample, found: Mapping[str, Array]) -> None:
        """Copy what was answered to a sample."""
        self.sample = sample
        self._found = found
        self.copies = {name: array.copy() for name, array in found.items()}

    def has_changed(self, name: str) -> bool:
        """Whether an output is another one now: its memory is the engine's, which ran since."""
        # Bytes and not values: a NaN that stayed is no change.
        return self._found[name].tobytes() != self.copies[name].tobytes()


def _answered(engine: Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """An engine's answer to copies of its own, which are overwritten as soon as it is given.

    So is the memory of the inputs. The reference never reads what an engine wrote to.

    Raises:
        EngineError: the engine failed, or wrote to an input.
    """
    # In the order of memory that they have: engines must take views that are not contiguous.
    given = {name: array.copy("K") for name, array in inputs.items()}
    found = engine.run(given)
    for name, array in given.items():
        if array.tobytes() != inputs[name].tobytes():
            raise EngineError(f"it changes its input '{name}', which the caller may need again")
        array[...] = np.zeros((), array.dtype)
    return found


def announced(samples: Sequence[Sample], what: str, report: Progress) -> Iterator[Sample]:
    """The samples, each with a line of progress before it.

    Args:
        samples: in the order in which they are run.
        what: is done with them, as the line begins.
        report: called before each sample.
    """
    for number, sample in enumerate(samples, 1):
        report(f"{what}, {number} of {len(samples)}: {sample.bucket} at {sizes_text(sample.sizes)}")
        yield sample


def _is_repeated(sample: Sample, buckets: Sequence[Bucket]) -> bool:
    """Whether the engine runs twice: at the least, usual and largest sizes of a bucket."""
    bucket = next(bucket for bucket in buckets if bucket.label == sample.bucket)
    ends = ({n: getattr(r, end) for n, r in bucket.dims.items()} for end in ("min", "opt", "max"))
    return sample.sizes in ends


def _no_answer(sample: Sample, words: str) -> OutputCheck:
    return OutputCheck(
        bucket=sample.bucket, sizes=sample.sizes, output="", fault=words, **vars(INFINITELY_FAR)
    )


def _fault_check(sample: Sample, name: str, fault: str) -> OutputCheck:
    # How far two runs lie from each other says nothing of how far they lie from the reference.
    return _output_check(sample, name, Comparison(distance=Distance(), fault=fault))


def _output_check(sample: Sample, name: str, result: Comparison) -> OutputCheck:
    return OutputCheck(
        bucket=sample.bucket,
        sizes=sample.sizes,
        output=name,
        fault=result.fault,
        **vars(result.distance),
    )


def _union(one: OutputCheck, other: OutputCheck) -> OutputCheck:
    largest = _distance(one).union(_distance(other))
    return one.model_copy(update={**vars(largest), "fault": one.fault or other.fault})


def _distance(check: OutputCheck) -> Distance:
    return Distance(
        rel_l2=check.rel_l2, max_abs=check.max_abs, cosine_distance=check.cosine_distance
    )
