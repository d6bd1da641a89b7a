"""Outputs that change with pads where a mask leaves positions out: found when a model is added."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from compiler_worker.inputs.integer_draws import drawn_role
from compiler_worker.inputs.sampling import SampleVariant, draw_sample
from compiler_worker.measures.comparison import compare_output
from compiler_worker.model_checks.sizes_check import has_room
from compiler_worker.references.models import OrtModel
from services.contracts.errors import ProofError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array, strings_among
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import (
    Bucket,
    InputRecipe,
    InputRole,
    OutputRecipe,
    Recipe,
    Tolerance,
)
from services.engines.shapes import corner, shape_at, union_of, write_padded

# Of few rows one has a single valid position.
_ROWS = 2
# Far above what the order of sums does in fp32; a mean over twice as many differs by more.
_ALLOWED = Tolerance(rel_l2=1e-4, max_abs=1e-4, cosine_distance=1e-6)


def masked_outputs(
    master_path: Path, master: MasterRecord, recipe: Recipe, buckets: Sequence[Bucket]
) -> dict[str, str]:
    """Run a request as it is, and padded as engines pad it.

    In DeBERTa's attention a position that the mask leaves out takes the mean of all, pads included:
    no engine that pads can give the answer that the same request has alone.

    Args:
        master_path: the master's `model.onnx`.
        master: its record.
        recipe: names masks; of outputs whose `valid_where` it has, nothing is asked.
        buckets: that requests are padded to.

    Returns:
        The mask of each output that pads change where it is 0, and nowhere else.
    """
    masks = [s for s in master.inputs if drawn_role(master, recipe, s.name) is InputRole.MASK]
    asked = [
        (output, mask)
        for output in master.outputs
        for mask in masks
        if mask.shape and output.shape[: len(mask.shape)] == mask.shape
        if "valid_where" not in recipe.outputs.get(output.name, OutputRecipe()).model_fields_set
    ]
    if not asked or strings_among(master.inputs, master.outputs) or not has_room(master_path):
        return {}
    found = dict[str, str]()
    model = OrtModel.open(master_path, master)
    for output, mask in asked:
        if _changes(model, master, recipe, buckets, output, mask):
            found.setdefault(output.name, mask.name)
    return found


def _changes(
    model: OrtModel,
    master: MasterRecord,
    recipe: Recipe,
    buckets: Sequence[Bucket],
    output: TensorSpec,
    mask: TensorSpec,
) -> bool:
    """Whether pads change the output, and only where the mask is 0."""
    length = mask.shape[-1]
    spans = union_of(buckets)
    if not isinstance(length, str) or length not in spans:
        return False
    sizes = {name: max(span.min, min(span.max, _ROWS)) for name, span in spans.items()}
    padded = sizes | {length: spans[length].opt}
    sizes[length] = max(spans[length].min, spans[length].opt // 2)
    inputs = draw_sample(master, recipe, buckets[0], sizes, variant=SampleVariant.RAGGED).inputs
    try:
        wanted = model.run(inputs)
        whole = model.run(_padded(inputs, master, recipe, padded))
    except ProofError:
        # Sizes that do not go together; the proof tries those that are served.
        return False
    among = {output.name: whole[output.name][corner(wanted[output.name].shape)]}
    here, valid = (
        compare_output(output, each, inputs, among, wanted, _ALLOWED).fault
        for each in (recipe, with_masks(recipe, {output.name: mask.name}))
    )
    return bool(here) and not valid


def with_masks(recipe: Recipe, masks: Mapping[str, str]) -> Recipe:
    """The recipe with `valid_where` of each output that `masks` has."""
    outputs = dict(recipe.outputs)
    for name, mask in masks.items():
        own = outputs.get(name, OutputRecipe())
        outputs[name] = own.model_copy(update={"valid_where": mask})
    return recipe.model_copy(update={"outputs": outputs})


def _padded(
    inputs: Mapping[str, Array], master: MasterRecord, recipe: Recipe, sizes: Mapping[str, int]
) -> dict[str, Array]:
    padded = dict[str, Array]()
    for spec in master.inputs:
        target = np.empty(shape_at(spec, dict(sizes)), NUMPY_FROM_DATATYPE[spec.datatype])
        write_padded(target, inputs[spec.name], recipe.inputs.get(spec.name, InputRecipe()).pad)
        padded[spec.name] = target
    return padded
