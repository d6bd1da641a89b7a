"""What a calibrated engine is compared at: inputs like those that its scales were taken from.

Legend: the arrays of a calibration set are [rows, ...] of their input's datatype.
"""

import math
from collections.abc import Mapping

import numpy as np

from compiler_worker.inputs.integer_draws import drawn_role
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import InputRecipe, InputRole, Recipe


def calibrated_recipe(
    recipe: Recipe, master: MasterRecord, calibration: Mapping[str, Array]
) -> Recipe:
    """The recipe with a range for each floating input, and a padding side for each mask.

    What has no pads before words in its calibration set is wrong there as it is beyond its ranges:
    MiniLM in int8 was 0.04 to 0.13 off (relative L2) on rows with pads behind, up to 0.47 with
    pads first (`traffic_int8_cpu_202611.md`).

    Args:
        recipe: of the model version; what it says of an input is kept.
        master: names the inputs and their types.
        calibration: real inputs by name; may lack some.
    """
    drawn = dict(ranged_recipe(recipe, master, calibration).inputs)
    for spec in master.inputs:
        is_mask = drawn_role(master, recipe, spec.name) is InputRole.MASK
        values = calibration.get(spec.name)
        own = drawn.get(spec.name, InputRecipe())
        is_open = is_mask and own.padding_side is None and not own.marks_padding
        if is_open and values is not None and _is_right_padded(values):
            drawn[spec.name] = own.model_copy(update={"padding_side": "right"})
    return recipe.model_copy(update={"inputs": drawn})


def ranged_recipe(recipe: Recipe, master: MasterRecord, calibration: Mapping[str, Array]) -> Recipe:
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


def _is_right_padded(mask: Array) -> bool:
    """Whether no valid position has an invalid one before it."""
    is_valid = mask != 0
    return not (is_valid[..., 1:] & ~is_valid[..., :-1]).any()
