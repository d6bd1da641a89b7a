"""Whether a recipe speaks of the model that it is for: found before anything is built.

A wrong name would not stop a proof, it would hollow it out: an input whose role is lost is
drawn as plain numbers, an output whose mask is lost is compared where nothing is valid.
"""

from collections.abc import Iterable

from services.contracts.errors import InvalidRecipeError
from services.contracts.manifest import MasterRecord
from services.contracts.nearest import nearest
from services.contracts.recipe import InputRecipe, InputRole, Recipe
from services.contracts.tensors import NUMPY_FROM_DATATYPE, TensorSpec


def check_recipe(master: MasterRecord, recipe: Recipe) -> None:
    """Check every name in a recipe but those of buckets, which `plan.buckets_of` checks.

    Raises:
        InvalidRecipeError: it names an input or output that the master lacks, limits the values
            of an input that holds no integers, names a `valid_where` that is no mask of the
            output's leading dimensions, or a ranking output that is no embedding.
    """
    inputs, outputs = _by_name(master.inputs), _by_name(master.outputs)
    _check_names("inputs", recipe.inputs, inputs)
    _check_names("outputs", recipe.outputs, outputs)
    for name, input_recipe in recipe.inputs.items():
        _check_limits(inputs[name], input_recipe)
    for name, output in recipe.outputs.items():
        if output.valid_where is not None:
            _check_mask(outputs[name], output.valid_where, recipe, inputs)
    if recipe.ranking is not None:
        _check_names("ranking.output", [recipe.ranking.output], outputs)
        shape = outputs[recipe.ranking.output].shape
        if len(shape) != 2:
            raise InvalidRecipeError(
                f"recipe: ranking.output '{recipe.ranking.output}': expected an embedding "
                f"[batch, D], the model has {list(shape)}"
            )


def _by_name(specs: Iterable[TensorSpec]) -> dict[str, TensorSpec]:
    return {spec.name: spec for spec in specs}


def _check_names(key: str, names: Iterable[str], known: dict[str, TensorSpec]) -> None:
    for name in names:
        if name not in known:
            raise InvalidRecipeError(
                f"recipe: {key}: '{name}' is not in the model{nearest(name, known)}; expected one "
                f"of {', '.join(known)}"
            )


def _check_limits(spec: TensorSpec, recipe: InputRecipe) -> None:
    is_limited = (recipe.min, recipe.max) != (None, None)
    if is_limited and NUMPY_FROM_DATATYPE[spec.datatype].kind not in "iu":
        raise InvalidRecipeError(
            f"recipe: inputs.{spec.name}: min and max are for integers, the model takes "
            f"{spec.datatype}; take them out"
        )


def _check_mask(
    output: TensorSpec, mask: str, recipe: Recipe, inputs: dict[str, TensorSpec]
) -> None:
    key = f"outputs.{output.name}.valid_where"
    _check_names(key, [mask], inputs)
    if mask not in recipe.inputs or recipe.inputs[mask].role is not InputRole.MASK:
        raise InvalidRecipeError(
            f"recipe: {key}: '{mask}' is drawn as values, a mask is wanted; add to the recipe: "
            f"inputs: {{{mask}: {{role: mask}}}}"
        )
    shape = inputs[mask].shape
    if output.shape[: len(shape)] != shape:
        raise InvalidRecipeError(
            f"recipe: {key}: '{mask}' is {list(shape)}, the leading dimensions of "
            f"{list(output.shape)} are wanted"
        )
