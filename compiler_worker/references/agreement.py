"""How far float32 itself is from a reference, and whether the witness agrees with that."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from compiler_worker.inputs.sampling import Sample
from compiler_worker.measures.comparison import compare_output
from compiler_worker.measures.default_tolerances import DEFAULTS_TOGETHER
from compiler_worker.measures.distance import Comparison, Distance
from compiler_worker.measures.tolerances import tolerance_for
from compiler_worker.references.reference import Reference
from services.contracts.errors import ProofError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.byte_strings import BYTES
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Recipe, Tolerance

# Where only the distance is wanted, and no verdict.
_ANY_DISTANCE = Tolerance(rel_l2=math.inf, max_abs=math.inf, cosine_distance=math.inf)


class Errors(NamedTuple):
    """How far float32 itself is from the reference at one output.

    Attributes:
        eager: the eager graph.
        shifted: the same with the master's own roundings to eight bits moved; 0 where it has none.
    """

    eager: Distance = Distance()
    shifted: Distance = Distance()


def eager_errors(
    reference: Reference,
    master: MasterRecord,
    recipe: Recipe,
    samples: Iterable[Sample],
    typical: Mapping[str, float],
) -> dict[str, Errors]:
    """The distances of eager float32 to the reference, by output; empty without an import.

    Args:
        reference: with its eager outputs.
        master: names the outputs.
        recipe: names the masks of positions that count.
        samples: whose largest distance is taken.
        typical: sizes of elements by output, as `typical_sizes` has them.
    """
    if reference.eager_outputs is None:
        return {}
    models = (reference.eager_outputs, *reference.shifted)
    largest: dict[str, Errors] = {}
    for sample in samples:
        found = [model.run(sample.inputs) for model in models]
        wanted = reference.model.run(sample.inputs)
        for spec in master.outputs:
            size = typical.get(spec.name, 0.0)
            eager, *shifted = (
                compare_output(
                    spec, recipe, sample.inputs, each, wanted, _ANY_DISTANCE, size
                ).distance
                for each in found
            )
            known = largest.get(spec.name, Errors())
            largest[spec.name] = Errors(
                eager=known.eager.union(eager),
                shifted=reduce(Distance.union, shifted, known.shifted),
            )
    return largest


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """Where a witness contradicts its reference.

    Attributes:
        spec: of the output.
        allowed: how far they may be from each other.
        typical: size of an element of that output.
        fault: how far they are.
    """

    spec: TensorSpec
    sample: Sample
    allowed: Tolerance
    typical: float
    fault: str

    @property
    def words(self) -> str:
        """Output, sizes, what was found and what is allowed."""
        return f"output '{self.spec.name}' at {self.sample.sizes}: {self.fault}"


def disagreement(
    reference: Reference,
    master: MasterRecord,
    recipe: Recipe,
    samples: Iterable[Sample],
    errors: Mapping[str, Errors],
    typical: Mapping[str, float],
) -> Disagreement | None:
    """The first output in which a reference's witness contradicts it.

    Args:
        reference: one without a witness has no disagreement.
        master: names the outputs.
        recipe: names the masks of valid positions; its tolerances are not used.
        samples: run until the first disagreement.
        errors: of eager float32 by output, as `eager_errors` measures them.
        typical: sizes of elements by output, as `typical_sizes` has them.
    """
    if reference.witness is None:
        return None
    for sample in samples:
        found, wanted = (m.run(sample.inputs) for m in (reference.witness, reference.model))
        for spec in master.outputs:
            # Not the recipe's tolerance: that is for engines, which may be meant to differ.
            allowed = tolerance_for(Precision.FP32, Recipe(), *errors.get(spec.name, Errors()))
            size = typical.get(spec.name, 0.0)
            result = compare_output(spec, recipe, sample.inputs, found, wanted, allowed, size)
            if not is_agreement(spec, result, wanted):
                return Disagreement(
                    spec=spec, sample=sample, allowed=allowed, typical=size, fault=result.fault
                )
    return None


def is_agreement(spec: TensorSpec, result: Comparison, wanted: Mapping[str, Array]) -> bool:
    """Whether two references answer alike: of many integers a few are ties, as engines' are.

    Args:
        spec: of the output.
        result: of the comparison.
        wanted: the reference's outputs by name, of any shape.
    """
    if not result.fault or not result.num_differing or spec.datatype == BYTES:
        return not result.fault
    most = 1 - DEFAULTS_TOGETHER[Precision.FP32].agreement
    return result.num_differing <= most * wanted[spec.name].size


def untrusted(reference: Reference, found: Disagreement, why: str = "") -> ProofError:
    """The error of a reference and a witness that disagree, to be raised.

    Args:
        reference: gives its name.
        found: where the witness differs.
        why: added to the message; "" adds nothing.
    """
    return ProofError(
        f"reference check failed, which is not the engine's fault ({reference.name}): the witness "
        f"differs in {found.words}" + (f"; {why}" if why else "")
    )
