"""Whether answers depend on the samples at all: where they do not, an engine of constants passes.

Answers that vary by less than their bounds allow are another matter: copies of means are no farther
from them than a right engine may be, and models with drawn weights have such outputs.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from compiler_worker.proof.claim import Claim, sizes_text
from compiler_worker.proof.power import Kept
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.byte_strings import BYTES
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Recipe

# As power checks name an engine of constants; what a recipe accepts it by.
CONSTANT = "mean only"


def same_answers(claim: Claim, kept: Sequence[Kept]) -> str:
    """Why a proof showed nothing, where each output is the same for all samples; else "".

    Args:
        claim: its recipe may accept it, of any output.
        kept: answers of the reference.
    """
    if claim.precision in constant_precisions(claim.recipe) or not claim.master.inputs:
        return ""
    if len(alike_outputs(claim.master, claim.recipe, kept)) < len(claim.master.outputs):
        return ""
    output = claim.master.outputs[0].name
    return (
        "all answers are the same for every sample, so an engine of constants would have passed; "
        f"give samples{ways_to_vary(claim.master)} whose answers differ, or accept it in the "
        f"recipe: outputs: {{{output}: {{accept_blind: {{{claim.precision}: [{CONSTANT}]}}}}}}"
    )


def constant_precisions(recipe: Recipe) -> list[Precision]:
    """Those in which a recipe accepts engines of constants."""
    accepted = [o.accept_blind for o in recipe.outputs.values()]
    return [
        each for each in Precision if any(CONSTANT in names.get(each, ()) for names in accepted)
    ]


def alike_outputs(master: MasterRecord, recipe: Recipe, kept: Sequence[Kept]) -> list[str]:
    """Outputs that are the same for all samples.

    Args:
        master: names the outputs.
        recipe: says which dimension is of rows, each of which is a sample.
        kept: answers.
    """
    found = []
    for spec in master.outputs:
        has_rows = spec.shape[:1] == (recipe.batching.batch_dim,)
        if _is_one(
            (each.sample.sizes, answer)
            for each in kept
            for answer in (each.wanted[spec.name] if has_rows else [each.wanted[spec.name]])
        ):
            found.append(spec.name)
    return found


def ways_to_vary(master: MasterRecord) -> str:
    """What a recipe may say of inputs of which the graph has no categories, by their types."""
    known = {name: values.choices for name, values in master.input_values.items()}
    open_ = [s for s in master.inputs if not all(known.get(s.name) or ((),))]
    strings = [spec.name for spec in open_ if spec.datatype == BYTES]
    numbers = [spec.name for spec in open_ if spec.datatype != BYTES]
    words = [
        f"strings that the model knows (inputs: {{{name}: {{values: [...]}}}})"
        for name in strings[:1]
    ]
    words += [
        f"a range (inputs: {{{name}: {{low: ..., high: ...}}}}) of what is usual"
        for name in numbers[:1]
    ]
    return "".join(f", or {each}" for each in words) + ("," if words else "")


def _is_one(answers: Iterable[tuple[Mapping[str, int], Array]]) -> bool:
    """Whether there are several of one shape, and all that have one are equal.

    Args:
        answers: with the sizes of their inputs, which alone may decide the shape.
    """
    firsts: dict[tuple[int, ...], Array] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    num_compared = 0
    for sizes, answer in answers:
        array = np.asarray(answer)
        if shapes.setdefault(sizes_text(sizes), array.shape) != array.shape:
            return False
        first = firsts.setdefault(array.shape, array)
        if first is array or not array.size:
            continue
        num_compared += 1
        # NaN is no answer that could be the same.
        if not (first == array).all():
            return False
    return num_compared > 0
