"""Outputs that change with pads where a mask is 0: found when a model is added."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from compiler_worker.inputs.integer_draws import drawn_role
from compiler_worker.inputs.sampling import SampleVariant, draw_sample
from compiler_worker.measures.comparison import compare_output
from compiler_worker.model_checks.served_master import ServedMaster, has_room
from compiler_worker.references.models import OrtModel
from services.contracts.errors import ProofError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array, strings_among
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import (
    InputRecipe,
    InputRole,
    OutputRecipe,
    Recipe,
    Tolerance,
)
from services.engines.shapes import corner, shape_at, union_of, write_padded

# Of few rows one has a single valid position.
_ROWS = 2
# Of fewer positions half has none that a mask could leave out.
_LEAST = 4
# Far above what the order of sums does in fp32; a mean over twice as many differs by more.
_ALLOWED = Tolerance(rel_l2=1e-4, max_abs=1e-4, cosine_distance=1e-6)
# What a mask goes through on its way to attention's weights.
_COMPARED = ("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or")
_ADDED = ("Add", "Cast", "Div", "Max", "Min", "Mul", "Sub", "Where")
_MOVED = ("Expand", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")
_TO_WEIGHTS = frozenset((*_COMPARED, *_ADDED, *_MOVED))
_WEIGHTS = frozenset(("Attention", "LogSoftmax", "Softmax"))


def masked_outputs(served: ServedMaster) -> dict[str, str]:
    """Run a request as it is, and padded as engines pad it.

    In DeBERTa's attention a position that the mask leaves out takes the mean of all, pads included:
    no engine that pads can give the answer that the same request has alone. Only of attention: a
    model that fills in what its mask leaves out is there for just these answers. Of outputs whose
    `valid_where` the recipe has, nothing is asked.

    Returns:
        The mask of each output that pads change where it is 0, and nowhere else. None where ONNX
        Runtime does not run the master: the proof tries it.
    """
    master = served.record
    recipe = served.recipe
    masks = [s for s in master.inputs if drawn_role(master, recipe, s.name) is InputRole.MASK]
    found = dict[str, str]()
    for mask in masks:
        asked = [
            output
            for output in master.outputs
            if mask.shape and output.shape[: len(mask.shape)] == mask.shape
            if output.name not in found and not _is_said(recipe, output.name)
        ]
        is_valid = not recipe.inputs.get(mask.name, InputRecipe()).marks_padding
        if asked and is_valid and _is_of_attention(served.path, mask.name):
            changed = _changed(served, mask, asked)
            found |= dict.fromkeys(changed, mask.name)
    return found


def with_masks(recipe: Recipe, masks: Mapping[str, str]) -> Recipe:
    """The recipe with `valid_where` of each output that `masks` has."""
    outputs = dict(recipe.outputs)
    for name, mask in masks.items():
        own = outputs.get(name, OutputRecipe())
        outputs[name] = own.model_copy(update={"valid_where": mask})
    return recipe.model_copy(update={"outputs": outputs})


def _is_said(recipe: Recipe, output: str) -> bool:
    """Whether the recipe says where an output counts, also that it does everywhere."""
    return "valid_where" in recipe.outputs.get(output, OutputRecipe()).model_fields_set


def _is_of_attention(master_path: Path, mask: str) -> bool:
    """Whether a mask decides the weights of an attention."""
    reached = {mask}
    # Nodes stand behind what they read.
    for node in onnx.load(master_path, load_external_data=False).graph.node:
        if reached.isdisjoint(node.input):
            continue
        if node.op_type in _WEIGHTS:
            return True
        if node.op_type in _TO_WEIGHTS:
            reached.update(node.output)
    return False


def _changed(served: ServedMaster, mask: TensorSpec, outputs: Sequence[TensorSpec]) -> list[str]:
    """Those of some outputs that pads change, and only where the mask is 0."""
    master = served.record
    recipe = served.recipe
    length = mask.shape[-1]
    spans = union_of(served.buckets)
    is_padded = isinstance(length, str) and length != recipe.batching.batch_dim and length in spans
    if not is_padded or strings_among(master.inputs, master.outputs) or not has_room(served.path):
        return []
    length = str(length)
    span = spans[length]
    sizes = {name: max(each.min, min(each.max, _ROWS)) for name, each in spans.items()}
    padded = sizes | {length: span.opt if span.opt >= _LEAST else span.max}
    sizes[length] = max(span.min, padded[length] // 2)
    inputs = draw_sample(
        master, recipe, served.buckets[0], sizes, variant=SampleVariant.RAGGED
    ).inputs
    try:
        model = OrtModel.open(served.path, master)
        wanted = model.run(inputs)
        whole = model.run(_padded(inputs, master, recipe, padded))
    except ProofError:
        return []
    changed = []
    for output in outputs:
        among = {output.name: whole[output.name][corner(wanted[output.name].shape)]}
        everywhere, valid = (
            compare_output(output, each, inputs, among, wanted, _ALLOWED).fault
            for each in (recipe, with_masks(recipe, {output.name: mask.name}))
        )
        if everywhere and not valid:
            changed.append(output.name)
    return changed


def _padded(
    inputs: Mapping[str, Array], master: MasterRecord, recipe: Recipe, sizes: Mapping[str, int]
) -> dict[str, Array]:
    padded = dict[str, Array]()
    for spec in master.inputs:
        target = np.empty(shape_at(spec, dict(sizes)), NUMPY_FROM_DATATYPE[spec.datatype])
        write_padded(target, inputs[spec.name], recipe.inputs.get(spec.name, InputRecipe()).pad)
        padded[spec.name] = target
    return padded
