"""The integers that requests may hold: what the graph allows, narrowed by the recipe."""

from dataclasses import dataclass

import numpy as np

from services.contracts.kserve.byte_strings import BYTES
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.model.input_values import InputValues, IntegerSpan
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import InputRecipe, Recipe


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueLimits:
    """What one input may hold, in the form that arrays are checked against.

    Attributes:
        spans: one for all places or one for each place of the last axis.
        source: which tables the bounds come from, for messages; "" when from none.
        low, high: [] or [places], in the input's own type; that type's ends where spans have none.
    """

    spans: tuple[IntegerSpan, ...]
    source: str
    low: Array
    high: Array

    def first_outside(self, values: Array) -> tuple[int, ...] | None:
        """The place of a value [..., places] that is not allowed; None when all are."""
        if not values.size:
            return None
        # Extremes alone: no copy of the input. Where they are is looked for only when wrong.
        if self._are_extremes_legal(values):
            return None
        found = np.argwhere((values < self.low) | (values > self.high))[0]
        return tuple(int(place) for place in found)

    def _are_extremes_legal(self, values: Array) -> bool:
        axes = tuple(range(values.ndim - self.low.ndim)) if self.low.ndim else None
        # Without axes, and of scalars, in half the time that arrays take.
        is_low = np.minimum.reduce(values, axis=axes) < self.low[()]
        is_high = np.maximum.reduce(values, axis=axes) > self.high[()]
        return not (is_low | is_high).any()

    def span_at(self, place: tuple[int, ...]) -> IntegerSpan:
        """What is allowed at a place."""
        return self.spans[place[-1]] if len(self.spans) > 1 else self.spans[0]


def limits_of(master: MasterRecord, recipe: Recipe) -> dict[str, ValueLimits]:
    """The limits of each input of integers that has any, by name."""
    limits = {}
    for spec in master.inputs:
        if spec.datatype == BYTES or NUMPY_FROM_DATATYPE[spec.datatype].kind not in "iu":
            continue
        known = master.input_values.get(spec.name, InputValues())
        spans = _narrowed(known, recipe.inputs.get(spec.name, InputRecipe()))
        if any((span.min, span.max) != (None, None) for span in spans):
            limits[spec.name] = _limits(spec, spans, known.source)
    return limits


def _narrowed(known: InputValues, recipe: InputRecipe) -> tuple[IntegerSpan, ...]:
    own = IntegerSpan(min=recipe.min, max=recipe.max)
    return tuple(span.within(own) for span in known.allowed or (IntegerSpan(),))


def _limits(spec: TensorSpec, spans: tuple[IntegerSpan, ...], source: str) -> ValueLimits:
    # In the input's own type: numpy compares int64 with uint64 as floats.
    dtype = NUMPY_FROM_DATATYPE[spec.datatype]
    least = int(np.iinfo(dtype).min)
    largest = int(np.iinfo(dtype).max)
    low = [least if span.min is None else max(least, span.min) for span in spans]
    high = [largest if span.max is None else min(largest, span.max) for span in spans]
    shape = (len(spans),) if len(spans) > 1 else ()
    return ValueLimits(
        spans=spans,
        source=source,
        low=np.array(low, dtype=dtype).reshape(shape),
        high=np.array(high, dtype=dtype).reshape(shape),
    )
