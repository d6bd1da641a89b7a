"""One output of a model against its reference, by the model's own specs and recipe.

Inputs and outputs are of any shape; a mask of valid positions has the leading axes of outputs.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from compiler_worker.measures.default_tolerances import DEFAULT_TOLERANCES
from compiler_worker.measures.distance import INFINITELY_FAR, Comparison, compare, compared_elements
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.byte_strings import BYTES
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import DATATYPE_FROM_NUMPY, Array
from services.contracts.model.recipe import Recipe, Tolerance

# Scales that are taken from a whole batch move its rows by so much, and no caller minds.
_ROUGHLY = DEFAULT_TOLERANCES[Precision.INT8]


def compare_output(
    spec: TensorSpec,
    recipe: Recipe,
    inputs: Mapping[str, Array],
    found: Mapping[str, Array],
    wanted: Mapping[str, Array],
    allowed: Tolerance,
    typical: float = 0.0,
) -> Comparison:
    """Compare the output that `spec` names: presence, datatype, shape, then values.

    Only positions that the recipe calls valid are compared; samples are rows of the batch
    dimension where the output has one.

    Args:
        spec: of the output.
        recipe: names the batch dimension, and the mask of valid positions.
        inputs: of the same run; the mask is among them.
        found: the engine's outputs by name.
        wanted: the reference's; float64 stands for every floating type.
        allowed: bounds for floating outputs; all others must be equal in every element.
        typical: size of an element, see `compare`.
    """
    array = found.get(spec.name)
    if array is None:
        return Comparison(distance=INFINITELY_FAR, fault=f"missing; found {sorted(found)}")
    datatype = DATATYPE_FROM_NUMPY.get(array.dtype, str(array.dtype))
    if datatype != spec.datatype:
        fault = f"datatype {datatype} found, {spec.datatype} wanted"
        return Comparison(distance=INFINITELY_FAR, fault=fault)
    return compare(
        array,
        wanted[spec.name],
        allowed,
        valid=_valid(spec, recipe, inputs),
        has_batch_axis=bool(spec.shape) and spec.shape[0] == recipe.batching.batch_dim,
        typical=typical,
    )


def rough_difference(
    spec: TensorSpec,
    recipe: Recipe,
    inputs: Mapping[str, Array],
    found: Mapping[str, Array],
    wanted: Mapping[str, Array],
) -> str:
    """How two answers of one model to the same request differ, in words; "" for about the same.

    Args:
        spec: of the output.
        recipe: names the batch dimension, and the mask of valid positions.
        inputs: of both runs.
        found: outputs of one run by name.
        wanted: of the other.
    """
    result = compare_output(spec, recipe, inputs, found, wanted, _ROUGHLY)
    # Of ids a few may be ties, which float32 decides.
    is_id = spec.datatype != BYTES and wanted[spec.name].dtype.kind in "biu"
    if result.fault and (not is_id or 2 * result.num_differing >= wanted[spec.name].size):
        return f"output '{spec.name}' differs by {result.fault}"
    return ""


def compared_in(
    spec: TensorSpec, recipe: Recipe, inputs: Mapping[str, Array], like: Array
) -> NDArray[np.bool_]:
    """Which elements of an output count, in the shape of `like`.

    Args:
        spec: of the output.
        recipe: names the mask of valid positions.
        inputs: of the same run.
        like: the output; only its shape counts.
    """
    return compared_elements(_valid(spec, recipe, inputs), like)


def has_numbers(outputs: Mapping[str, Array]) -> bool:
    """Whether each output of floats has a finite one, or none at all."""
    # bfloat16 is of kind V.
    floats = [array for array in outputs.values() if array.dtype.kind in "fV"]
    return all(np.isfinite(array.astype(np.float64)).any() for array in floats if array.size)


def is_finite_where(array: Array, wanted: Array) -> bool:
    """Whether floats are finite wherever the wanted ones of their shape are; other types are."""
    if wanted.dtype.kind in "biuO" or array.shape != wanted.shape:
        return True
    here, there = (np.isfinite(each.astype(np.float64)) for each in (array, wanted))
    return bool((here | ~there).all())


def _valid(spec: TensorSpec, recipe: Recipe, inputs: Mapping[str, Array]) -> Array | None:
    output = recipe.outputs.get(spec.name)
    return inputs[output.valid_where] if output and output.valid_where else None
