"""The power of a proof: which faults its bounds would have refused, had the engine had them.

A bound proves nothing until something is beyond it. Copies of the reference's answers are spoilt in
known ways and judged under the same bounds as the engine. Where a copy would pass, the bounds are
tightened for this engine: it is refused unless the copy is more than twice as far off as it is.
What passes even then is what the proof is blind to. Answers are of any shape.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from compiler_worker.inputs.sampling import Sample
from compiler_worker.proof.output_judge import OutputJudge
from compiler_worker.proof.sabotages import OF_FLOATS, OF_INTEGERS, Answers, Sabotage
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.selection.proof_checks import PowerCheck

# Elements of one output that spoilt copies are made of: enough of any model's rows and lengths,
# and seconds at most. What is refused on a part would be refused on the whole.
MAX_ELEMENTS = 2**20
# Less than this part of a column's own spread is no fault that matters.
_NOTICED = 0.01
# A copy that is so many times as far off as the engine is distinguished from it.
_FARTHER = 2.0


class _Outcome(Enum):
    """What becomes of a spoilt copy: it is none, beyond a bound, farther off than the engine."""

    UNCHANGED = auto()
    REFUSED = auto()
    FARTHER = auto()
    PASSED = auto()


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The reference's answer to one sample."""

    sample: Sample
    wanted: Mapping[str, Array]


class Answered:
    """Some of the reference's answers, as many as power is measured with."""

    def __init__(self) -> None:
        """Begin with none."""
        self.kept: list[Kept] = []
        self._num_elements = 0

    def offer(self, sample: Sample, wanted: Mapping[str, Array]) -> None:
        """Keep an answer up to MAX_ELEMENTS in all, and the first in any case."""
        if sample.variant.is_extreme:
            return
        largest = max((array.size for array in wanted.values()), default=0)
        if not self.kept or self._num_elements + largest <= MAX_ELEMENTS:
            self.kept.append(Kept(sample=sample, wanted=wanted))
            self._num_elements += largest


def power_check(
    judge: OutputJudge, kept: Sequence[Kept], passes_tasks: Callable[[str, Sabotage], bool]
) -> PowerCheck | None:
    """Judge spoilt copies of one output.

    Args:
        judge: has judged the engine's output, and has seen all of the reference's.
        kept: answers to spoil.
        passes_tasks: whether the recipe's own tasks would let pass what the bounds do.

    Returns:
        None for an output of strings, which are equal or not, and for one that never varies.
    """
    bounds = judge.bounds
    if bounds.is_exact:
        spoils = OF_INTEGERS
    elif judge.columns.is_begun:
        spoils = OF_FLOATS
    else:
        return None
    refused = list[str]()
    tightened = list[str]()
    blind = list[str]()
    unchanged = list[str]()
    for name, sabotage in spoils.items():
        match _outcome(judge, kept, sabotage):
            case _Outcome.UNCHANGED:
                unchanged.append(name)
            case _Outcome.REFUSED:
                refused.append(name)
            case _Outcome.FARTHER:
                tightened.append(name)
            case _Outcome.PASSED:
                # Last, as tasks run over all samples again: only what no bound refuses gets here.
                is_blind = passes_tasks(bounds.spec.name, sabotage)
                (blind if is_blind else refused).append(name)
    asked = bounds.recipe.outputs.get(bounds.spec.name)
    acceptable = asked.accept_blind.get(bounds.precision, ()) if asked else ()
    accepted = tuple(name for name in blind if name in acceptable)
    return PowerCheck(
        output=bounds.spec.name,
        refused=tuple(refused),
        tightened=tuple(tightened),
        blind=tuple(blind),
        accepted=accepted,
        unchanged=tuple(unchanged),
    )


def spoilt(sabotage: Sabotage, judge: OutputJudge, kept: Kept, largest: int, seed: int) -> Array:
    """A copy of one answer as the sabotage leaves it, in the output's own type.

    Args:
        sabotage: makes the copy.
        judge: of the output; has the moments of all the reference's answers.
        kept: the reference's answer to one sample.
        largest: elements of the largest answer; scales the fault to the size of this one.
        seed: of the places that are spoilt.
    """
    spec = judge.bounds.spec
    array = kept.wanted[spec.name]
    axis, sums, own = judge.moments()
    answers = Answers(
        array=array if judge.bounds.is_exact else array.astype(np.float64),
        axis=axis,
        sums=sums,
        own=own,
        has_batch_axis=spec.shape[:1] == (judge.bounds.recipe.batching.batch_dim,),
        share=array.size / max(largest, 1),
        seed=seed,
    )
    # Back in the output's own type a value may overflow, as an engine's would.
    with np.errstate(over="ignore"):
        return sabotage(answers).astype(NUMPY_FROM_DATATYPE[spec.datatype])


def _outcome(judge: OutputJudge, kept: Sequence[Kept], sabotage: Sabotage) -> _Outcome:
    name = judge.bounds.spec.name
    # Of its own: the judge's columns hold the engine's errors, the copy's would be added to them.
    again = OutputJudge(
        bounds=judge.bounds, eager=judge.eager, shifted=judge.shifted, sizes=judge.sizes
    )
    largest = max((each.wanted[name].size for each in kept), default=0)
    is_changed = False
    for number, each in enumerate(kept):
        found = {name: spoilt(sabotage, judge, each, largest, number)}
        result = again.compare(each.sample, found, each.wanted)
        if result.fault:
            return _Outcome.REFUSED
        is_changed |= bool((found[name] != each.wanted[name]).any())
    if is_changed and again.fault:
        return _Outcome.REFUSED
    if not is_changed or again.is_within(_NOTICED):
        return _Outcome.UNCHANGED
    return _Outcome.FARTHER if again.is_farther_than(judge, _FARTHER) else _Outcome.PASSED
