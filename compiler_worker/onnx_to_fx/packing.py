"""Sequences and optionals as the tensors in them, for what takes and gives tensors only."""

from __future__ import annotations

from collections.abc import Iterator

from compiler_worker.onnx_to_fx.values import AnyValue, OptionalValue, SequenceValue, Tensor, Value


def packed(value: AnyValue) -> list[Value]:
    """Return the tensors in a value, in order."""
    match value:
        case SequenceValue(items):
            return list(items)
        case OptionalValue(item):
            return [] if item is None else packed(item)
        case _:
            return [value]


def unpacked(like: AnyValue, tensors: Iterator[Tensor]) -> AnyValue:
    """Return a value of the form of `like`, of the next tensors."""
    match like:
        case SequenceValue(items):
            return SequenceValue(tuple(next(tensors) for _ in items))
        case OptionalValue(item):
            inner = None if item is None else unpacked(item, tensors)
            return inner if isinstance(inner, OptionalValue) else OptionalValue(inner)
        case _:
            return next(tensors)


def form(value: AnyValue) -> str:
    """Return what a value is, for comparisons and messages."""
    match value:
        case SequenceValue(items):
            return f"a sequence of {len(items)}"
        case OptionalValue(item):
            return "an empty optional" if item is None else f"an optional of {form(item)}"
        case _:
            return "a tensor"
