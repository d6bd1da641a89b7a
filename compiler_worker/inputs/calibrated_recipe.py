"""What a calibrated engine is compared at: values of the size that its scales were taken from."""

import math
from collections.abc import Mapping

import numpy as np

from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import InputRecipe, Recipe


def calibrated_recipe(
    recipe: Recipe, master: MasterRecord, calibration: Mapping[str, Array]
) -> Recipe:
    """The recipe with a range for each floating input that it leaves open.

    The range has mean and spread of the calibration set, as even draws from it have: beyond it
    eight bits saturate, which is no fault of the engine.

    Args:
        recipe: of the model version; ranges that it has are kept.
        master: names the inputs and their types.
        calibration: real inputs by name; may lack some.
    """
    drawn = dict(recipe.inputs)
    for spec in master.inputs:
        own = recipe.inputs.get(spec.name, InputRecipe())
        values = calibration.get(spec.name)
        dtype = NUMPY_FROM_DATATYPE.get(spec.datatype)
        if values is None or own.has_range or dtype is None or dtype.kind in "biuO":
            continue
        mean = values.mean(dtype=np.float64)
        spread = values.std(dtype=np.float64)
        # Half the width of an even draw that has this spread.
        reach = math.sqrt(3) * float(spread)
        if reach > 0:
            drawn[spec.name] = own.model_copy(
                update={"low": float(mean) - reach, "high": float(mean) + reach}
            )
    return recipe.model_copy(update={"inputs": drawn})
