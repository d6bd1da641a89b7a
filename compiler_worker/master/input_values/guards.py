"""Conditions on an integer that choose between two branches of Where: `ids < 0`, `ids == pad`."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from compiler_worker.master.input_values.graph_constants import constant
from compiler_worker.master.input_values.spans import Spans

_SWAPPED = {
    "Less": "Greater",
    "LessOrEqual": "GreaterOrEqual",
    "Greater": "Less",
    "GreaterOrEqual": "LessOrEqual",
    "Equal": "Equal",
}


@dataclass(frozen=True, kw_only=True)
class Guard:
    """A condition holds exactly inside (or, when not `holds_inside`, outside) of low to high."""

    low: float
    high: float
    holds_inside: bool

    def turned(self) -> "Guard":
        """The opposite condition."""
        return Guard(low=self.low, high=self.high, holds_inside=not self.holds_inside)

    def as_inside(self, *, holds_inside: bool) -> "Guard | None":
        """The same condition by the other side; None where that is two spans."""
        if self.holds_inside is holds_inside:
            return self
        if np.isneginf(self.low):
            return Guard(low=self.high + 1, high=np.inf, holds_inside=holds_inside)
        if np.isposinf(self.high):
            return Guard(low=-np.inf, high=self.low - 1, holds_inside=holds_inside)
        return None

    def loosened(self, wanted: Spans, *, is_strict: bool) -> Spans:
        """What a value may be whose branch counts only where this condition holds.

        Args:
            wanted: what the branch itself requires, one span for all places.
            is_strict: leave out what lies between the branch's span and that of the others.
        """
        if other := self.as_inside(holds_inside=False):  # one span where it does not hold
            around = wanted | Spans.of(other.low, other.high)
            touches = other.low <= wanted.high + 1 and other.high >= wanted.low - 1
            return around if touches or not is_strict else wanted
        is_inside = wanted.low <= self.low and self.high <= wanted.high
        if not is_strict:
            return Spans.of()
        return Spans.of(self.low - 1, self.high + 1) if is_inside else wanted


def guard_of(condition: ir.Value | None, operand: ir.Value) -> Guard | None:
    """What a condition says of an operand of the same Where; None when that is not known."""
    node = condition.producer() if condition is not None else None
    if node is None:
        return None
    if node.op_type == "Not":
        inner = guard_of(node.inputs[0], operand)
        return inner.turned() if inner else None
    if node.op_type in ("And", "Or"):
        first, second = (guard_of(each, operand) for each in node.inputs)
        return _both(first, second, is_and=node.op_type == "And")
    return _comparison(node, operand) if node.op_type in _SWAPPED else None


def _both(first: Guard | None, second: Guard | None, *, is_and: bool) -> Guard | None:
    """Both hold inside of what both spans share; either fails only there for an Or."""
    if first is None or second is None:
        return None
    one, two = (each.as_inside(holds_inside=is_and) for each in (first, second))
    if one is None or two is None:
        return None
    return Guard(low=max(one.low, two.low), high=min(one.high, two.high), holds_inside=is_and)


def _comparison(node: ir.Node, operand: ir.Value) -> Guard | None:
    left, right = node.inputs
    op_type = node.op_type
    compared = left
    limit = constant(right)
    if limit is None:
        op_type = _SWAPPED[op_type]
        compared = right
        limit = constant(left)
    if limit is None or limit.size != 1 or compared is None:
        return None
    root, shift = _shifted(compared)
    operand_root, operand_shift = _shifted(operand)
    if root is not operand_root:
        return None
    # In terms of the operand, which may be the compared value plus a constant.
    at = float(limit.reshape(-1)[0]) + operand_shift - shift
    low, high = {
        "Less": (-np.inf, np.ceil(at) - 1),
        "LessOrEqual": (-np.inf, np.floor(at)),
        "Greater": (np.floor(at) + 1, np.inf),
        "GreaterOrEqual": (np.ceil(at), np.inf),
        "Equal": (at, at),
    }[op_type]
    return Guard(low=float(low), high=float(high), holds_inside=True)


def _shifted(value: ir.Value) -> tuple[ir.Value, float]:
    """The value that this one is, plus a constant."""
    shift = 0.0
    while node := value.producer():
        source = node.inputs[0] if node.inputs else None
        if node.op_type in ("Cast", "Identity") and source is not None:
            value = source
            continue
        if node.op_type not in ("Add", "Sub"):
            break
        left, right = node.inputs
        added = constant(right)
        if added is None and node.op_type == "Add":
            added = constant(left)
            left = right
        if added is None or added.size != 1 or left is None:
            break
        value = left
        shift += float(added.reshape(-1)[0]) * (1 if node.op_type == "Add" else -1)
    return value, shift
