"""Which value of a mask marks padding: found when a model is added."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from compiler_worker.inputs.integer_draws import drawn_role
from compiler_worker.inputs.sampling import draw_sample
from compiler_worker.measures.comparison import has_numbers
from compiler_worker.model_checks.sizes_check import has_room
from compiler_worker.references.models import Model, OrtModel
from services.contracts.errors import ProofError
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, InputRecipe, InputRole, Recipe


def padding_masks(
    master_path: Path, master: MasterRecord, recipe: Recipe, bucket: Bucket
) -> tuple[str, ...]:
    """Masks whose 1 marks padding, as PyTorch's `key_padding_mask` does.

    A model whose mask leaves out all positions has no answer but NaN, mostly; one that leaves out
    none has.

    Args:
        master_path: the master's `model.onnx`.
        master: its record.
        recipe: inputs that it has are what it says.
        bucket: of which a request is run.

    Returns:
        Their names; none where the usual meaning gives numbers, or ONNX Runtime does not run it.
    """
    asked = [
        spec.name
        for spec in master.inputs
        if spec.name not in recipe.inputs
        and drawn_role(master, recipe, spec.name) is InputRole.MASK
    ]
    if not asked or not has_room(master_path):
        return ()
    sizes = {name: max(span.min, min(span.max, 2)) for name, span in bucket.dims.items()}
    inputs = draw_sample(master, recipe, bucket, sizes).inputs
    try:
        model = OrtModel.open(master_path, master)
        if _has_answers(model, inputs, ()):
            return ()
        tried = [*((name,) for name in asked), tuple(asked)]
        return next((names for names in tried if _has_answers(model, inputs, names)), ())
    except ProofError:
        return ()


def with_padding_masks(recipe: Recipe, names: Sequence[str]) -> Recipe:
    """The recipe, by which these inputs are 1 where there is padding."""
    turned = {name: InputRecipe(pad=1) for name in names}
    return recipe.model_copy(update={"inputs": {**recipe.inputs, **turned}})


def _has_answers(model: Model, inputs: Mapping[str, Array], turned: Sequence[str]) -> bool:
    """Whether any output has numbers where these masks are 0 everywhere."""
    zeros = {name: np.zeros_like(inputs[name]) for name in turned}
    return has_numbers(model.run({**inputs, **zeros}))
