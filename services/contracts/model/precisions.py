"""Which precisions a recipe has engines built in: those that it lists, or what `auto` finds. Pure.

`auto` is resolved for each generation: what the device has instructions for, as far as the
recipe's word for accuracy goes. Quantised ones beside int8 are built where they are listed.
"""

from collections.abc import Mapping

from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.instructions import missing_instructions
from services.contracts.hardware.kinds import Precision
from services.contracts.model.precision_choice import AUTO, Accuracy
from services.contracts.model.recipe import Recipe

_TRIED = {
    # No kind of engine computes in fp16 on a CPU.
    Platform.CPU: (Precision.FP32, Precision.BF16, Precision.INT8),
    Platform.CUDA: (Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8),
}


def admitted_precisions(recipe: Recipe, *, has_calibration: bool) -> tuple[Precision, ...]:
    """What engines of a recipe may compute in, wherever they run.

    Args:
        recipe: of a model version.
        has_calibration: whether the version has samples that int8 can be calibrated with.
    """
    if recipe.precisions != AUTO:
        return recipe.precisions
    every = dict.fromkeys(each for tried in _TRIED.values() for each in tried)
    return tuple(each for each in every if not _refusal(each, recipe, has_calibration))


def precisions_on(
    generation: Generation, recipe: Recipe, *, has_calibration: bool
) -> Mapping[Precision, str]:
    """What is built on a generation: each precision with "", or with why it is not built.

    Args:
        generation: of the nodes that shall run the engines.
        recipe: of a model version.
        has_calibration: whether the version has samples that int8 can be calibrated with.
    """
    if recipe.precisions != AUTO:
        return dict.fromkeys(recipe.precisions, "")
    return {
        each: missing_instructions(generation, each) or _refusal(each, recipe, has_calibration)
        for each in _TRIED[generation.platform]
    }


def is_tried(recipe: Recipe, precision: Precision) -> bool:
    """Whether `auto` chose it, not the owner: a proof that refuses it is no failure."""
    return recipe.precisions == AUTO and precision is not Precision.FP32


def _refusal(precision: Precision, recipe: Recipe, has_calibration: bool) -> str:
    """Why a precision that `auto` tries is not for a recipe; "" where it is."""
    if recipe.accuracy is Accuracy.EXACT and precision is not Precision.FP32:
        return f"the recipe says accuracy: {Accuracy.EXACT}"
    if precision.is_calibrated and not has_calibration:
        if recipe.calibration and recipe.calibration.traffic:
            return "the version waits for samples of its requests (calibration: traffic)"
        return (
            "the version has no calibration set; its recipe may name one (calibration), or say "
            "accuracy: ranking, which takes the model's own samples"
        )
    return ""
