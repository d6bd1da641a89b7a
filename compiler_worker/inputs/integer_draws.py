"""Integers of proof inputs: over all that the graph takes, unless the recipe has a range."""

import math

import numpy as np

from compiler_worker.inputs.float_draws import put_ranges
from services.contracts.kserve.byte_strings import BYTES
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.model.input_values import InputValues, IntegerSpan
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import InputRecipe, InputRole, Recipe

# Where nothing shows what integers mean: a table has at least two rows and a mask two values, and
# inputs that are all one value would leave most of a model unproven.
_WIDTH_BY_DEFAULT = 2


def drawn_role(master: MasterRecord, recipe: Recipe, name: str) -> InputRole:
    """How an input is drawn: by the recipe, or by default as the graph uses it.

    Args:
        master: has what the graph shows of its inputs.
        recipe: a mask or a range in it is used before that.
        name: of the input.
    """
    own = recipe.inputs.get(name, InputRecipe())
    known = master.input_values.get(name, InputValues())
    return own.role if own.role is InputRole.MASK or own.has_range else known.role


def undescribed(master: MasterRecord, recipe: Recipe) -> list[str]:
    """A sentence for each integer input whose range neither graph nor recipe has."""
    return [
        f"neither the graph nor the recipe says which integers '{spec.name}' takes: proofs draw 0 "
        f"and 1 alone; say so in the recipe, inputs: {{{spec.name}: {{low: ..., high: ...}}}}, "
        f"or of a mask, inputs: {{{spec.name}: {{role: mask}}}}, or give samples"
        for spec in master.inputs
        if _is_open(spec, master, recipe)
    ]


def _is_open(spec: TensorSpec, master: MasterRecord, recipe: Recipe) -> bool:
    is_integer = spec.datatype != BYTES and NUMPY_FROM_DATATYPE[spec.datatype].kind in "iu"
    if not is_integer or drawn_role(master, recipe, spec.name) is InputRole.MASK:
        return False
    own = recipe.inputs.get(spec.name, InputRecipe())
    known = master.input_values.get(spec.name, InputValues())
    return not known.is_described and IntegerSpan() in _spans(own, known)


def draw_integers(
    shape: tuple[int, ...], recipe: InputRecipe, known: InputValues, generator: np.random.Generator
) -> Array:
    """Uniform over the whole range, whose two ends are always among them.

    Args:
        shape: of the input.
        recipe: its own range counts before the graph's.
        known: what the graph shows.
        generator: that of this input.

    Returns:
        int64 [*shape].
    """
    low, high = (np.array(ends) for ends in zip(*map(_closed, _spans(recipe, known)), strict=True))
    ends = (low.squeeze(), high.squeeze())
    drawn = np.asarray(generator.integers(*ends, size=shape, endpoint=True))
    if drawn.size > 1:
        _set_ends(drawn.reshape(-1, shape[-1]), low, high)
    if ranges := known.ranges_beside(recipe):
        put_ranges(drawn, ranges, generator.standard_normal(shape))
    return drawn


def _set_ends(rows: Array, low: Array, high: Array) -> None:
    """At the start of rows, where a mask has its valid positions; of all columns or the first."""
    if len(rows) > 1:
        rows[0, : len(low)] = low
        rows[1, : len(high)] = high
    elif len(low) == 1:
        rows[0, 0] = low[0]
        rows[0, -1] = high[0]


def _spans(recipe: InputRecipe, known: InputValues) -> tuple[IntegerSpan, ...]:
    """The recipe's range, else the graph's, within the limits of requests."""
    allowed = IntegerSpan(min=recipe.min, max=recipe.max)
    if not recipe.has_range:
        return tuple(span.within(allowed) for span in known.drawn or (IntegerSpan(),))
    low = math.ceil(recipe.low)
    if recipe.high is not None:
        # `high` is the first that is not drawn, as of floats; a span has its end in it.
        return (IntegerSpan(min=low, max=max(low, math.ceil(recipe.high) - 1)),)
    # A low alone begins what min and max or the graph end.
    allowed = allowed.within(IntegerSpan(min=low))
    return tuple(span.within(allowed) for span in known.drawn or (IntegerSpan(),))


def _closed(span: IntegerSpan) -> tuple[int, int]:
    """Both ends, where there is one only or none too."""
    low = span.min
    high = span.max
    if low is None:
        low = 0 if high is None else high - _WIDTH_BY_DEFAULT + 1
    return low, low + _WIDTH_BY_DEFAULT - 1 if high is None else high
