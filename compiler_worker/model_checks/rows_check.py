"""Whether the rows of a batch depend on each other: found when a model is added."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from compiler_worker.inputs.sampling import draw_sample
from compiler_worker.measures.comparison import has_numbers, rough_difference
from compiler_worker.model_checks.served_master import ServedMaster, has_room
from compiler_worker.references.models import OrtModel
from services.contracts.errors import InvalidRecipeError, ProofError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.engines.shapes import union_of

# As many requests are run together.
_FEW = 3


def check_rows(master: ServedMaster) -> str:
    """Run a few requests together, the first and the last alone: replicas join those of many.

    A recurrence passes on what was before; or what comes after, where it is reversed. What ONNX
    Runtime does not run, or not in the memory of this host, is left to the proof.

    All buckets say how many rows there may be; the first, the usual other sizes.

    Returns:
        Why no answers were compared; "" where they were.

    Raises:
        InvalidRecipeError: a row has another answer among others, or none that can be compared;
            says which, and what to do.
    """
    rows = master.recipe.batching.batch_dim
    usual = master.buckets[0]
    if rows is None or rows not in usual.dims:
        return "no dimension counts rows"
    for spec in (*master.record.inputs, *master.record.outputs):
        # One without rows, or with rows against rows, has none to take out.
        if spec.shape.count(rows) != 1:
            return f"'{spec.name}' {list(spec.shape)} does not have '{rows}' as one of its axes"
    # A request that fits in one bucket may be joined to a batch of another.
    span = union_of(master.buckets)[rows]
    num_rows = max(span.min, 1)
    if span.max < 2 * num_rows:
        return f"no two requests are in {span.min}..{span.max} rows"
    if not has_room(master.path):
        return "the memory of this host does not hold the weights twice"
    sizes = {name: each.opt for name, each in usual.dims.items()}
    sizes[rows] = min(span.max, _FEW * num_rows)
    try:
        inputs = draw_sample(master.record, master.recipe, usual, sizes).inputs
        fault = _fault(master, inputs, num_rows)
    except ProofError as error:
        return str(error)
    if fault:
        raise InvalidRecipeError(fault)
    return ""


def _fault(master: ServedMaster, inputs: Mapping[str, Array], num_rows: int) -> str:
    record = master.record
    model = OrtModel.open(master.path, record)
    rows = master.recipe.batching.batch_dim or ""
    together = model.run(inputs)
    for place in (range(-num_rows, 0), range(num_rows)):
        lone = _taken(inputs, record.inputs, rows, place)
        among = _taken(together, record.outputs, rows, place)
        alone = model.run(lone)
        again = model.run(lone)
        for spec in record.outputs:
            difference = partial(rough_difference, spec, master.recipe, lone, alone)
            if fault := _fault_of(spec, difference, alone, again, among):
                return fault
    return ""


def _fault_of(
    spec: TensorSpec,
    difference: Callable[[Mapping[str, Array]], str],
    alone: Mapping[str, Array],
    again: Mapping[str, Array],
    among: Mapping[str, Array],
) -> str:
    """In words what is wrong with an output."""
    if not has_numbers({spec.name: alone[spec.name]}):
        return (
            f"output '{spec.name}' of drawn inputs is NaN or Inf everywhere, so no answer can "
            "be compared with another; look at the model's weights, and give inputs that must "
            "not be negative a range in the recipe (inputs: {NAME: {low: 0, high: 1}}), and masks "
            "their role (inputs: {NAME: {role: mask}})"
        )
    if words := difference(again):
        return (
            f"the same request twice gives different answers: {words}; no engine of a "
            "model that draws random numbers can be proven, as a proof compares answers: make "
            "them an input of the model, or have it served without engines by a recipe that "
            "says batching: {batch_dim: null}"
        )
    if words := difference(among):
        return (
            f"rows depend on each other: {words} between a row alone and the same one "
            "among others, and replicas join rows of many callers; give a recipe that says "
            "batching: {batch_dim: null}, so that each request is computed alone"
        )
    return ""


def _taken(
    arrays: Mapping[str, Array], specs: Sequence[TensorSpec], rows: str, place: range
) -> dict[str, Array]:
    return {s.name: np.take(arrays[s.name], place, axis=s.shape.index(rows)) for s in specs}
