"""GELU that its master wrote out, by erf or by tanh, becomes one call."""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from compiler_worker.fx_rewrites.attention_fusion import number
from compiler_worker.fx_rewrites.editor import (
    Editor,
    aten,
    is_addition,
    is_call,
    only_user,
    rank_of,
)

# Masters hold these constants with the digits that their framework wrote.
_REL_TOL = 1e-3


def recognise_gelu(editor: Editor) -> int:
    """Rewrite each written-out GELU; the number of them."""
    return sum(_rewrite(editor, node) for node in editor.calls(aten.mul.Tensor))


def _rewrite(editor: Editor, end: fx.Node) -> bool:
    factors, scale = _factors(editor, end)
    if not math.isclose(scale, 0.5, rel_tol=_REL_TOL) or len(factors) != 2:
        return False
    # Factors have no order: either may be the one that is gated.
    for x, gate in (factors, factors[::-1]):
        inner = _plus_one(editor, gate)
        approximate = _approximation(editor, inner, x)
        if approximate:
            editor.replace(end, editor.call(end, aten.gelu.default, x, approximate=approximate))
            return True
    return False


def _approximation(editor: Editor, inner: Any, x: Any) -> str:
    """Which GELU `x * (1 + inner) / 2` is; "" for none."""
    if is_call(inner, aten.erf.default) and _is_multiple(editor, inner.args[0], x, math.sqrt(0.5)):
        return "none"
    if is_call(inner, aten.tanh.default) and _is_tanh_argument(editor, inner.args[0], x):
        return "tanh"
    return ""


def _factors(editor: Editor, node: Any) -> tuple[list[Any], float]:
    """The two tensors of a product of two tensors and numbers, and the numbers' product."""
    found: list[Any] = []
    scale = 1.0
    open_: list[Any] = [node]
    while open_:
        each = open_.pop()
        value = number(editor, each, node)
        if value is not None:
            scale *= value
        elif is_call(each, aten.mul.Tensor) and (each is node or only_user(each) is not None):
            open_ += each.args
        else:
            found.append(each)
    # Numbers with more axes than the tensors have give the product those axes.
    is_plain = max(map(rank_of, found), default=-1) == rank_of(node)
    return (found, scale) if is_plain else ([node], 1.0)


def _plus_one(editor: Editor, node: Any) -> Any:
    """y, where a node is `y + 1`."""
    if not is_addition(node):
        return None
    for y, one in (node.args, node.args[::-1]):
        if number(editor, one, y) == 1.0:
            return y
    return None


def _is_multiple(editor: Editor, node: Any, x: Any, factor: float) -> bool:
    if is_call(node, aten.div.Tensor):
        value = number(editor, node.args[1], node.args[0])
        is_close = bool(value) and math.isclose(1 / (value or 1), factor, rel_tol=_REL_TOL)
        return node.args[0] is x and is_close
    factors, scale = _factors(editor, node)
    return factors == [x] and math.isclose(scale, factor, rel_tol=_REL_TOL)


def _is_tanh_argument(editor: Editor, node: Any, x: Any) -> bool:
    """`sqrt(2 / pi) * (x + 0.044715 * x**3)`."""
    factors, scale = _factors(editor, node)
    if len(factors) != 1 or not math.isclose(scale, math.sqrt(2 / math.pi), rel_tol=_REL_TOL):
        return False
    total = factors[0]
    if not is_addition(total):
        return False
    for one, cubic in (total.args, total.args[::-1]):
        if one is x and _is_cubic(editor, cubic, x):
            return True
    return False


def _is_cubic(editor: Editor, node: Any, x: Any) -> bool:
    factors, scale = _factors(editor, node)
    if not math.isclose(scale, 0.044715, rel_tol=_REL_TOL) or len(factors) != 1:
        return False
    power = factors[0]
    return is_call(power, aten.pow.Tensor_Scalar) and power.args == (x, 3)
