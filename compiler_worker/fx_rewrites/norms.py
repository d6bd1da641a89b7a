"""Layer normalisation that its master wrote out (mean, difference, square, root) becomes one call.

Legend: D = the normalised last axis.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from torch import fx

from compiler_worker.fx_rewrites.attention_fusion import number
from compiler_worker.fx_rewrites.editor import (
    Editor,
    argument,
    aten,
    dtype_of,
    is_addition,
    is_call,
    only_user,
    rank_of,
    shape_of,
)


class Norm(NamedTuple):
    """`(x - mean) / sqrt(variance + epsilon)`.

    Attributes:
        result: the node whose value that is.
    """

    result: fx.Node
    x: fx.Node
    epsilon: float


def recognise_layer_norms(editor: Editor) -> int:
    """Rewrite each written-out normalisation of the last axis; the number of them."""
    return sum(_rewrite(editor, node) for node in editor.calls(*_DIVISIONS))


_DIVISIONS = (aten.div.Tensor, aten.mul.Tensor)


def _rewrite(editor: Editor, node: fx.Node) -> bool:
    found = _norm(editor, node)
    if found is None:
        return False
    size = shape_of(found.x)[-1]
    if not isinstance(size, int):
        return False
    end, scale_D, bias_D = _affine(editor, found.result, size)
    norm = editor.call(
        end,
        # Not layer_norm: that decomposes to this one, which Inductor has a kernel for.
        aten.native_layer_norm.default,
        found.x,
        [size],
        _plain(editor, end, scale_D, found.x),
        _plain(editor, end, bias_D, found.x),
        found.epsilon,
    )
    editor.replace(end, _first(editor, end, norm))
    return True


def _first(editor: Editor, before: fx.Node, norm: fx.Node) -> fx.Node:
    with editor.module.graph.inserting_before(before):
        node = editor.module.graph.call_function(operator.getitem, (norm, 0))
    node.meta["val"] = norm.meta["val"][0]
    return node


def _plain(editor: Editor, before: fx.Node, weight: fx.Node | None, x: fx.Node) -> fx.Node | None:
    if weight is None or dtype_of(weight) == dtype_of(x):
        return weight
    return editor.call(before, aten.to.dtype, weight, dtype_of(x))


def _norm(editor: Editor, node: fx.Node) -> Norm | None:
    """`centred / sqrt(v + e)`, or `centred * (1 / sqrt(v + e))`, v the mean of centred squares."""
    sides = (node.args, node.args[::-1]) if is_call(node, aten.mul.Tensor) else (node.args,)
    for centred, factor in (side[:2] for side in sides if len(side) == 2):
        root = _root(factor, is_inverse=is_call(node, aten.mul.Tensor))
        x = _centred(centred)
        if root is None or x is None or not isinstance(centred, fx.Node):
            continue
        epsilon = _variance_epsilon(editor, root, centred)
        if epsilon is not None:
            return Norm(node, x, epsilon)
    return None


def _root(factor: Any, *, is_inverse: bool) -> Any:
    """What is under the root."""
    if is_inverse:
        if is_call(factor, aten.rsqrt.default):
            return factor.args[0]
        if not is_call(factor, aten.reciprocal.default):
            return None
        factor = factor.args[0]
    if is_call(factor, aten.sqrt.default):
        return factor.args[0]
    is_power = is_call(factor, aten.pow.Tensor_Scalar) and factor.args[1] == 0.5
    return factor.args[0] if is_power else None


def _centred(node: Any) -> fx.Node | None:
    """x, where a node is `x - mean(x)` over the last axis."""
    if not is_call(node, aten.sub.Tensor) or argument(node, 2, "alpha", 1) != 1:
        return None
    x, mean = node.args[:2]
    is_mean = _is_last_mean(mean) and mean.args[0] is x
    return x if is_mean and isinstance(x, fx.Node) else None


def _is_last_mean(node: Any) -> bool:
    if not is_call(node, aten.mean.dim) or argument(node, 2, "keepdim", False) is not True:
        return False
    axes = [axis % rank_of(node) for axis in node.args[1]]
    return axes == [rank_of(node) - 1] and argument(node, 3, "dtype") in (None, dtype_of(node))


def _variance_epsilon(editor: Editor, root: Any, centred: fx.Node) -> float | None:
    if not is_addition(root):
        return None
    for variance, epsilon in (root.args, root.args[::-1]):
        value = number(editor, epsilon, variance)
        if value is not None and _is_last_mean(variance) and _is_square(variance.args[0], centred):
            return value
    return None


def _is_square(node: Any, of: fx.Node) -> bool:
    if is_call(node, aten.mul.Tensor):
        return _is_like(node.args[0], of) and _is_like(node.args[1], of)
    is_power = is_call(node, aten.pow.Tensor_Scalar) and node.args[1] == 2
    return bool(is_power) and _is_like(node.args[0], of)


def _is_like(node: Any, other: fx.Node) -> bool:
    """The same node, or another difference of the same operands."""
    is_twin = is_call(node, aten.sub.Tensor) and node.args == other.args
    return node is other or bool(is_twin)


def _affine(
    editor: Editor, result: fx.Node, size: int
) -> tuple[fx.Node, fx.Node | None, fx.Node | None]:
    """The last node of the normalisation with its scale and bias, where they follow at once."""
    end, scale = _with_weight(editor, result, aten.mul.Tensor, size)
    if scale is None:
        return result, None, None
    end, bias = _with_weight(editor, end, aten.add.Tensor, size)
    return end, scale, bias


def _with_weight(
    editor: Editor, node: fx.Node, target: Any, size: int
) -> tuple[fx.Node, fx.Node | None]:
    user = only_user(node)
    if user is None or not is_call(user, target) or argument(user, 2, "alpha", 1) != 1:
        return node, None
    weight = next((each for each in user.args if each is not node), None)
    tensor = editor.weight(weight)
    if tensor is None or tuple(tensor.shape) != (size,) or dtype_of(user) != dtype_of(node):
        return node, None
    assert isinstance(weight, fx.Node)
    return user, weight
