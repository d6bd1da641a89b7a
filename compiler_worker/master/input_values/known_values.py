"""What a master's graph requires of the numbers and categories that its inputs hold."""

import onnx_ir as ir

from compiler_worker.master.input_values.categories import categories
from compiler_worker.master.input_values.input_uses import InputUses
from compiler_worker.master.input_values.integer_rules import RULES
from compiler_worker.master.input_values.mask_uses import is_mask
from compiler_worker.master.input_values.ranges import ranges
from compiler_worker.master.input_values.spans import Spans
from services.contracts.model.input_values import InputValues, IntegerSpan
from services.contracts.model.recipe import InputRole

# Pixels, sounds and quantised values: each is a number of its type. Wider integers may be masks or
# ids in ways that are not followed, and mean something only within bounds.
_BITS_OF_PIXELS = 8


def input_values(model: ir.Model) -> dict[str, InputValues]:
    """By name, what is known of inputs; those of which nothing is known are left out.

    Args:
        model: in its normal form, with shapes inferred.
    """
    known = {value.name or "": _values_of(model, value) for value in model.graph.inputs}
    return {name: values for name, values in known.items() if values != InputValues()}


def _values_of(model: ir.Model, value: ir.Value) -> InputValues:
    found = _integers_of(model, value)
    if found.role is InputRole.MASK:
        return found
    # An integer that is looked up in a table has to lie within it.
    drawn = () if found.allowed else ranges(model, value)
    known = categories(model, value)
    return found.model_copy(update={"choices": known, "ranges": drawn})


def _integers_of(model: ir.Model, value: ir.Value) -> InputValues:
    if value.dtype is None or not (value.dtype.is_integer() or value.dtype is ir.DataType.BOOL):
        return InputValues()
    strict = InputUses(model, RULES, is_strict=True)
    # Walked twice, as an op may itself handle values that mean nothing.
    drawn = _spans(value, strict.spans(value), is_strict=True)
    allowed = _spans(value, InputUses(model, RULES, is_strict=False).spans(value))
    if not drawn and not allowed and is_mask(value):
        return InputValues(role=InputRole.MASK)
    if value.dtype is ir.DataType.BOOL:
        return InputValues()
    if not drawn and value.dtype.bitwidth <= _BITS_OF_PIXELS:
        drawn = allowed or (IntegerSpan(min=int(value.dtype.min), max=int(value.dtype.max)),)
    return InputValues(drawn=drawn, allowed=allowed, tables=tuple(sorted(strict.tables)))


def _spans(value: ir.Value, found: Spans, *, is_strict: bool = False) -> tuple[IntegerSpan, ...]:
    """One for all places, or one for each place of the last axis; none where all may be."""
    by_column = found.joined(range(found.low.ndim - 1), is_strict=is_strict)
    if by_column.is_open or by_column.is_empty:
        return ()
    assert value.dtype is not None
    least = float(value.dtype.min)
    largest = float(value.dtype.max)
    spans = tuple(
        # An end beyond that of the input's own type is none.
        IntegerSpan(
            min=int(low) if low > least else None, max=int(high) if high < largest else None
        )
        for low, high in zip(by_column.low.flat, by_column.high.flat, strict=True)
    )
    alike = spans[:1] if len(set(spans)) == 1 else spans
    return () if alike == (IntegerSpan(),) else alike
