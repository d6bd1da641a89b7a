"""Which faults a proof of eight bits may overlook, written into the recipe, to be changed there.

Rounding to eight bits is itself as far off as these faults are, so that no bound that a right
engine keeps would show them. A recipe that names another set for a precision, or none, is kept.
"""

from compiler_worker.inputs.sampling import is_floating
from services.contracts.hardware.kinds import Precision
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.precisions import admitted_precisions
from services.contracts.model.recipe import OutputRecipe, Recipe

_LITTLE = ("a column shifted by a tenth of its spread", "one row in fifty of another sample")
OF_EIGHT_BITS: dict[Precision, tuple[str, ...]] = {
    Precision.INT8_WEIGHT_ONLY: _LITTLE,
    Precision.INT8: ("2 % off", *_LITTLE),
    Precision.FP8: ("2 % off", *_LITTLE),
}


def with_accepted_blindness(
    recipe: Recipe, master: MasterRecord, *, has_calibration: bool
) -> Recipe:
    """The recipe with what it accepts of each precision in eight bits that it has.

    Args:
        recipe: of the model version; not changed.
        master: its floating outputs are given the sets.
        has_calibration: whether engines with calibrated scales can be built.
    """
    asked = admitted_precisions(recipe, has_calibration=has_calibration)
    wanted = {each: OF_EIGHT_BITS[each] for each in asked if each in OF_EIGHT_BITS}
    outputs = dict(recipe.outputs)
    for spec in master.outputs if wanted else ():
        if is_floating(spec):
            known = outputs.get(spec.name, OutputRecipe())
            # The recipe's own sets last: they replace these, the empty one too.
            accepted = wanted | known.accept_blind
            outputs[spec.name] = known.model_copy(update={"accept_blind": accepted})
    return recipe.model_copy(update={"outputs": outputs})


def accepted_words(recipe: Recipe) -> list[str]:
    """A line for each precision of which proofs may overlook something."""
    found: dict[tuple[Precision, tuple[str, ...]], list[str]] = {}
    for name, output in recipe.outputs.items():
        for precision, faults in output.accept_blind.items():
            if faults:
                found.setdefault((precision, faults), []).append(name)
    return [
        f"{precision}: its proof may overlook on {', '.join(names)}: {', '.join(faults)} "
        "(accept_blind, filled in for eight bits; an empty list in the recipe takes none)"
        for (precision, faults), names in found.items()
    ]
