"""Whether the rows of a batch depend on each other: found when a model is added."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from compiler_worker.inputs.sampling import draw_sample, is_floating
from compiler_worker.measures.comparison import compare_output, has_numbers
from compiler_worker.measures.default_tolerances import DEFAULT_TOLERANCES
from compiler_worker.model_checks.sizes_check import has_room
from compiler_worker.references.models import OrtModel
from services.contracts.errors import InvalidRecipeError, ProofError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array, TensorSpec
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, Recipe

_FEW_ROWS = 3
# Scales that are taken from a whole batch move its rows by so much, and no caller minds.
_ALLOWED = DEFAULT_TOLERANCES[Precision.INT8]


def check_rows(
    master_path: Path, master: MasterRecord, recipe: Recipe, buckets: Sequence[Bucket]
) -> bool:
    """Ask a few rows together and the last of them alone: replicas join rows of many callers.

    The last, as a recurrence passes on what was before.

    What ONNX Runtime does not run, or not in the memory of this host, is left to the proof. Returns
    whether answers were compared.

    Args:
        master_path: the master's `model.onnx`.
        master: its record.
        recipe: names the dimension of rows; without one, requests are never joined.
        buckets: the first is asked at its usual sizes.

    Raises:
        InvalidRecipeError: a row has another answer among others, or none that can be compared;
            says which, and what to do.
    """
    rows = recipe.batching.batch_dim
    specs = (*master.inputs, *master.outputs)
    if rows is None or rows not in buckets[0].dims or not has_room(master_path):
        return False
    # A tensor without rows, or with rows against rows, has none to take out.
    if any(spec.shape.count(rows) != 1 for spec in specs):
        return False
    try:
        fault = _fault(OrtModel.open(master_path, master), master, recipe, buckets[0], rows)
    except ProofError:
        return False
    if fault:
        raise InvalidRecipeError(fault)
    return True


def _fault(model: OrtModel, master: MasterRecord, recipe: Recipe, bucket: Bucket, rows: str) -> str:
    span = bucket.dims[rows]
    sizes = {name: r.opt for name, r in bucket.dims.items()} | {rows: min(span.max, _FEW_ROWS)}
    # One row alone is no request of this model, or there is never another beside it.
    if span.min > 1 or sizes[rows] < 2:
        return ""
    inputs = draw_sample(master, recipe, bucket, sizes).inputs
    last = {spec.name: _last(inputs[spec.name], spec, rows) for spec in master.inputs}
    among, alone, again = model.run(inputs), model.run(last), model.run(last)
    for spec in master.outputs:
        if not has_numbers({spec.name: alone[spec.name]}):
            return (
                f"output '{spec.name}' of drawn inputs is NaN or Inf everywhere, so no answer can "
                "be compared with another; look at the model's weights, and give inputs that must "
                "not be negative a range in the recipe (inputs: {NAME: {low: 0, high: 1}})"
            )
        if difference := _difference(spec, recipe, last, alone, again[spec.name]):
            return (
                f"the same request twice gives different answers: {difference}; no engine of a "
                "model that draws random numbers can be proven, as a proof compares answers: make "
                "them an input of the model, or have it served without engines by a recipe that "
                "says batching: {batch_dim: null}"
            )
        row = _last(among[spec.name], spec, rows)
        if difference := _difference(spec, recipe, last, alone, row):
            return (
                f"rows depend on each other: {difference} between a row alone and the same one "
                "among others, and replicas join rows of many callers; give a recipe that says "
                "batching: {batch_dim: null}, so that each request is computed alone"
            )
    return ""


def _difference(
    spec: TensorSpec,
    recipe: Recipe,
    inputs: Mapping[str, Array],
    found: Mapping[str, Array],
    wanted: Array,
) -> str:
    result = compare_output(spec, recipe, inputs, found, {spec.name: wanted}, _ALLOWED)
    # Of ids a few may be ties, which float32 decides.
    if result.fault and (is_floating(spec) or 2 * result.num_differing >= wanted.size):
        return f"output '{spec.name}' differs by {result.fault}"
    return ""


def _last(array: Array, spec: TensorSpec, rows: str) -> Array:
    return np.take(array, [-1], axis=spec.shape.index(rows))
