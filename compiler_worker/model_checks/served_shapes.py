"""The rows and sizes that a model is served at: what its recipe says, and else what it computes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from compiler_worker.inputs.integer_draws import drawn_role
from compiler_worker.inputs.sampling import draw_sample
from compiler_worker.measures.comparison import has_numbers
from compiler_worker.model_checks.pads_check import masked_outputs, with_masks
from compiler_worker.model_checks.rows_check import check_rows
from compiler_worker.model_checks.served_master import ServedMaster, has_room
from compiler_worker.model_checks.sizes_check import (
    check_empty,
    check_largest,
    computed_sizes,
)
from compiler_worker.plans.build_keys import buckets_of
from compiler_worker.references.models import Model, OrtModel
from services.contracts.errors import InvalidRecipeError, ProofError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import InputRecipe, InputRole, Recipe

_ROWS = "batch_dim"
_BATCH = "batch"
_ALONE = "are computed as if alone"
_JOINED = (
    "replicas join requests along it, unless a recipe says otherwise (batching: {batch_dim: null})"
)
_TURNED = (
    "'{name}' is 1 where there is padding, as answers are NaN where it is 1 everywhere: "
    "inputs: {{{name}: {{pad: 1}}}}"
)
_MASKED = (
    "'{name}' changes with padding where '{mask}' is 0, so proofs compare it elsewhere only: "
    "outputs: {{{name}: {{valid_where: {mask}}}}}; to compare all of it, give a recipe that says "
    "outputs: {{{name}: {{valid_where: null}}}}"
)


def served_shapes(
    master: tuple[Path, MasterRecord],
    recipe: Recipe,
    limits: Mapping[str, DimLimits],
    unnamed: Collection[str],
) -> ServedMaster:
    """Run the model at the rows and sizes that it is to be served at.

    Args:
        master: its `model.onnx`, and its record.
        recipe: what it says of rows and sizes has to be so.
        limits: by dimension, from the source.
        unnamed: dimensions that have no name of the owner's.

    Raises:
        InvalidRecipeError: the model fails at what the owner says of it.
    """
    path, record = master
    buckets = buckets_of(record, recipe, limits)
    asked = ServedMaster(path=path, record=record, recipe=recipe, buckets=buckets)
    padding = padding_masks(asked)
    served = _joined(replace(asked, recipe=with_padding_masks(recipe, padding)), limits, unnamed)
    for name in padding:
        served = _with_remark(served, _TURNED.format(name=name))
    masks = masked_outputs(served)
    served = replace(served, recipe=with_masks(served.recipe, masks))
    for name, mask in masks.items():
        served = _with_remark(served, _MASKED.format(name=name, mask=mask))
    return served


def _joined(
    asked: ServedMaster, limits: Mapping[str, DimLimits], unnamed: Collection[str]
) -> ServedMaster:
    """With its shapes, and whether requests are joined."""
    rows = _first_axis(asked.record.inputs)
    recipe = asked.recipe
    is_stated = _ROWS in recipe.batching.model_fields_set
    is_owned = rows == recipe.batching.batch_dim and rows not in unnamed
    # No request has no rows, so what may be 0 is none.
    is_none = not rows or any(b.dims[rows].min == 0 for b in recipe.buckets if rows in b.dims)
    if is_stated or is_owned or is_none:
        served = _sized(asked, limits)
        check_rows(served)
        return served
    served = _sized(_by_rows(asked, rows), limits)
    where = f"along '{rows}', axis 0 of every input"
    try:
        unknown = check_rows(served)
    except InvalidRecipeError as error:
        return _apart(asked, limits, f"requests are not joined {where}: {error}")
    found = f"could not be compared with lone ones ({unknown})" if unknown else _ALONE
    # Where the owner does not call them a batch, joining may mix the answers of several callers.
    if unknown and (rows in unnamed or _BATCH not in rows.lower()):
        words = f"requests are not joined {where}, whose rows {found}; to have them joined, "
        say = f"give a recipe that says batching: {{batch_dim: {rows}}}"
        return _apart(asked, limits, words + say)
    return _with_remark(served, f"rows {where}, {found}: {_JOINED}")


def _apart(asked: ServedMaster, limits: Mapping[str, DimLimits], remark: str) -> ServedMaster:
    return _with_remark(_sized(_by_rows(asked, None), limits), remark)


def _with_remark(served: ServedMaster, remark: str) -> ServedMaster:
    return replace(served, remarks=(remark, *served.remarks))


def _first_axis(inputs: Sequence[TensorSpec]) -> str:
    """What axis 0 is called where it is dynamic, and called the same, in all inputs; else ""."""
    firsts = {spec.shape[0] if spec.shape else 0 for spec in inputs}
    first = firsts.pop() if len(firsts) == 1 else 0
    return first if isinstance(first, str) else ""


def _sized(asked: ServedMaster, limits: Mapping[str, DimLimits]) -> ServedMaster:
    served = replace(asked, buckets=buckets_of(asked.record, asked.recipe, limits))
    check_empty(served)
    if asked.recipe.buckets:
        check_largest(served)
        return served
    found, why = computed_sizes(served)
    if not found:
        return served
    # The recipe's, and no limits of the source: beyond the sizes by default nothing was run.
    buckets = buckets_of(asked.record, asked.recipe, {**limits, **found})
    remarks = (
        f"'{name}' {each.min}..{each.max}: {why}; other sizes are a recipe's: buckets"
        for name, each in found.items()
    )
    recipe = asked.recipe.model_copy(update={"buckets": buckets})
    return replace(served, recipe=recipe, buckets=buckets, remarks=tuple(remarks))


def _by_rows(asked: ServedMaster, rows: str | None) -> ServedMaster:
    batching = asked.recipe.batching.model_copy(update={_ROWS: rows})
    return replace(asked, recipe=asked.recipe.model_copy(update={"batching": batching}))


def padding_masks(served: ServedMaster) -> tuple[str, ...]:
    """Masks whose 1 marks padding, as PyTorch's `key_padding_mask` does.

    A model whose mask leaves out all positions has no answer but NaN, mostly; one that leaves out
    none has. Inputs that the recipe has are what it says.

    Returns:
        Their names; none where the usual meaning gives numbers, or ONNX Runtime does not run it.
    """
    master = served.record
    recipe = served.recipe
    bucket = served.buckets[0]
    asked = [
        spec.name
        for spec in master.inputs
        if spec.name not in recipe.inputs
        and drawn_role(master, recipe, spec.name) is InputRole.MASK
    ]
    if not asked or not has_room(served.path):
        return ()
    sizes = {name: max(span.min, min(span.max, 2)) for name, span in bucket.dims.items()}
    inputs = draw_sample(master, recipe, bucket, sizes).inputs
    try:
        model = OrtModel.open(served.path, master)
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
