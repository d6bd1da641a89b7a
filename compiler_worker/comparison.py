"""One output of a model against its reference, by the model's own specs and recipe."""

from collections.abc import Mapping

from compiler_worker.distance import INFINITELY_FAR, Comparison, compare
from services.contracts.recipe import Recipe, Tolerance
from services.contracts.tensors import DATATYPE_FROM_NUMPY, Array, TensorSpec


def compare_output(
    spec: TensorSpec,
    recipe: Recipe,
    inputs: Mapping[str, Array],
    found: Mapping[str, Array],
    wanted: Mapping[str, Array],
    allowed: Tolerance,
) -> Comparison:
    """Compare the output that `spec` names: presence, datatype, shape, then values.

    Only positions that the recipe calls valid are compared; samples are rows of the batch
    dimension where the output has one.
    """
    array = found.get(spec.name)
    if array is None:
        return Comparison(distance=INFINITELY_FAR, fault=f"missing; found {sorted(found)}")
    datatype = DATATYPE_FROM_NUMPY.get(array.dtype, str(array.dtype))
    if datatype != spec.datatype:
        fault = f"datatype {datatype} found, {spec.datatype} wanted"
        return Comparison(distance=INFINITELY_FAR, fault=fault)
    output = recipe.outputs.get(spec.name)
    return compare(
        array,
        wanted[spec.name],
        allowed,
        valid=inputs[output.valid_where] if output and output.valid_where else None,
        has_batch_axis=bool(spec.shape) and spec.shape[0] == recipe.batching.batch_dim,
    )
