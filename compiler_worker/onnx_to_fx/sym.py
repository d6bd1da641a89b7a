"""Integers that are known only when shapes are: symbolic values on the host.

`Sym` looks like an int to a converter: `+ - * // %` on it emit one scalar fx node
each, which runs as a Python int in eager mode and as a SymInt under export. Two
equal expressions share one node.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Emit: TypeAlias = Callable[..., torch.fx.Node]


class Sym:
    """One integer that depends on the shapes of the call; a boolean is one that is 0 or 1.

    Attributes:
        node: the fx node that yields it.
        is_size: True when it cannot be negative.
    """

    __slots__ = ("_emit", "is_size", "node")

    def __init__(self, node: torch.fx.Node, emit: Emit, *, is_size: bool) -> None:
        """Name the node of an integer.

        Args:
            node: the fx node that yields it.
            emit: adds a node of a function and its arguments, or returns the one that is there.
            is_size: True when it cannot be negative.
        """
        self.node = node
        self.is_size = is_size
        self._emit = emit

    def apply(self, function: Callable[..., Any], *args: HostInt, is_size: bool = False) -> Sym:
        """Emit `function(*args)` into the graph that this value is in.

        Args:
            function: of integers, such as `operator.add`.
            *args: its arguments; this value only if it is among them.
            is_size: whether the result cannot be negative.
        """
        return Sym(self._emit(function, *args), self._emit, is_size=is_size)

    def __add__(self, other: HostInt) -> HostInt:
        return (
            self
            if _is(other, 0)
            else self.apply(operator.add, self, other, is_size=_ge0(self, other))
        )

    def __radd__(self, other: int) -> HostInt:
        return self + other

    def __sub__(self, other: HostInt) -> HostInt:
        # The same node, so surely 0; what is merely equal in some calls is not.
        if self == other:
            return 0
        return self if _is(other, 0) else self.apply(operator.sub, self, other)

    def __rsub__(self, other: int) -> HostInt:
        return self.apply(operator.sub, other, self)

    def __mul__(self, other: HostInt) -> HostInt:
        if _is(other, 0):
            return 0
        return (
            self
            if _is(other, 1)
            else self.apply(operator.mul, self, other, is_size=_ge0(self, other))
        )

    def __rmul__(self, other: int) -> HostInt:
        return self * other

    def __floordiv__(self, other: HostInt) -> HostInt:
        if _is(other, 1):
            return self
        return self.apply(operator.floordiv, self, other, is_size=_ge0(self, other))

    def __rfloordiv__(self, other: int) -> HostInt:
        return self.apply(operator.floordiv, other, self, is_size=_ge0(self, other))

    def __mod__(self, other: HostInt) -> HostInt:
        return self.apply(operator.mod, self, other, is_size=_ge0(other))

    def __rmod__(self, other: int) -> HostInt:
        return self.apply(operator.mod, other, self, is_size=self.is_size)

    def __neg__(self) -> HostInt:
        return self.apply(operator.neg, self)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same computation; two others may still be equal in value."""
        return isinstance(other, Sym) and self.node is other.node

    def __hash__(self) -> int:
        return hash(self.node)

    def __repr__(self) -> str:
        return f"Sym({self.node.name})"


HostInt: TypeAlias = int | Sym


def sym_max(left: HostInt, right: HostInt) -> HostInt:
    """Return the larger, without asking which one it is at import."""
    return _extreme(torch.sym_max, left, right, is_size=_ge0(left) or _ge0(right))


def sym_min(left: HostInt, right: HostInt) -> HostInt:
    """Return the smaller, without asking which one it is at import."""
    return _extreme(torch.sym_min, left, right, is_size=_ge0(left) and _ge0(right))


def ceil_div(left: HostInt, right: int) -> HostInt:
    """Return the quotient rounded up, for left >= 0 and right > 0."""
    return (left + (right - 1)) // right


def product(items: list[HostInt]) -> HostInt:
    """Return the product; 1 for no items."""
    result: HostInt = 1
    for item in items:
        result = result * item
    return result


def truncated_div(left: HostInt, right: HostInt) -> HostInt | None:
    """Return ONNX integer division (toward zero), None for one by zero."""
    if _is(right, 0):
        return None
    if _ge0(left, right):
        return left // right
    if isinstance(left, Sym):
        return left.apply(_truncated_div_in_call, left, right)
    if isinstance(right, Sym):
        return right.apply(_truncated_div_in_call, left, right)
    return _truncated_div_in_call(left, right)


def _truncated_div_in_call(left: int, right: int) -> int:
    if left < 0:
        return -_truncated_div_in_call(-left, right)
    return -(left // -right) if right < 0 else left // right


def left_over(total: list[HostInt], parts: list[HostInt]) -> int | None:
    """Return product(total) / product(parts) where the symbols cancel, else None."""
    symbols = [item for item in parts if isinstance(item, Sym)]
    for item in total:
        if isinstance(item, Sym):
            if item not in symbols:
                return None
            symbols.remove(item)
    whole = math.prod(item for item in total if not isinstance(item, Sym))
    part = math.prod(item for item in parts if not isinstance(item, Sym))
    return whole // part if not symbols and part and whole % part == 0 else None


def known_equal(left: HostInt, right: HostInt) -> bool | None:
    """Return whether two values are equal, None when that is dynamic."""
    if not isinstance(left, Sym) and not isinstance(right, Sym):
        return left == right
    if left == right:
        return True
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Sym) and one.is_size and not isinstance(other, Sym) and other < 0:
            return False
    return None


def sym_equal(left: HostInt, right: HostInt) -> HostInt:
    """Return whether two values are equal.

    As arithmetic: a branch on a size would make an export serve the sizes that
    answer as the example does, and no others.
    """
    known = known_equal(left, right)
    return known if known is not None else sym_not(sym_max(left - right, right - left))


def sym_greater(left: HostInt, right: HostInt) -> HostInt:
    """Return whether the first value is the larger one."""
    if not isinstance(left, Sym) and not isinstance(right, Sym):
        return left > right
    return sym_max(0, sym_min(1, left - right))


def sym_not(value: HostInt) -> HostInt:
    """Return whether a value, which is not negative, is zero."""
    return sym_max(0, 1 - value) if isinstance(value, Sym) else not value


def sym_choice(condition: HostInt, left: HostInt, right: HostInt) -> HostInt:
    """Return one of two values, without a branch in the graph.

    Args:
        condition: 0 or 1.
        left: the result where it is 1.
        right: the result where it is 0.
    """
    if not isinstance(condition, Sym):
        return left if condition else right
    if left is right or known_equal(left, right):
        return left
    return condition * left + sym_not(condition) * right


def _extreme(
    function: Callable[..., Any], left: HostInt, right: HostInt, *, is_size: bool
) -> HostInt:
    for value in (left, right):
        if isinstance(value, Sym):
            return left if left == right else value.apply(function, left, right, is_size=is_size)
    return int(function(left, right))


def _is(value: HostInt, number: int) -> bool:
    return not isinstance(value, Sym) and value == number


def _ge0(*values: HostInt) -> bool:
    return all(v.is_size if isinstance(v, Sym) else v >= 0 for v in values)
