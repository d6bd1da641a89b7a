"""Attention that its master wrote out (products, scale, mask, softmax) becomes one call.

Legend: B = batch, H = heads, Q = queries, K = keys, D = head size.

The fused kernels take the softmax in float32 whatever the operands are, which is what the
written-out form does at best; results differ by rounding only. A row that may attend
nothing is zero in both, where the master guards it, and undefined where it does not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import fx

from compiler_worker.fx_rewrites.casts import holds, is_widening
from compiler_worker.fx_rewrites.editor import (
    CASTS,
    RESHAPES,
    Editor,
    aten,
    dtype_of,
    is_addition,
    is_call,
    is_same_shape,
    only_user,
    rank_of,
    shape_of,
)

# A number added to all scores changes nothing, and the call takes none.
_MASKS = range(1, 5)
_TURNS = (aten.permute.default, aten.transpose.int)


class Scaled(NamedTuple):
    """A tensor times a number."""

    node: fx.Node
    scale: float


class Scores(NamedTuple):
    """What goes into a softmax: `scale * q @ k.T + mask`."""

    q: fx.Node
    k: fx.Node
    scale: float
    mask: fx.Node | None


def recognise_attention(editor: Editor) -> int:
    """Rewrite each written-out attention; the number of them."""
    return sum(_rewrite(editor, node) for node in editor.calls(*_SOFTMAXES))


_SOFTMAXES = (aten.softmax.int, aten._softmax.default)  # noqa: SLF001 - an op of torch


def _rewrite(editor: Editor, softmax: fx.Node) -> bool:
    if softmax.args[1] not in (-1, rank_of(softmax) - 1):
        return False
    scores = _scores(editor, softmax.args[0])
    product = _product(softmax)
    if scores is None or product is None or not _is_fusable(scores, product):
        return False
    mask = scores.mask
    if mask is not None and rank_of(mask) == 1:
        # The call broadcasts a mask of two axes and more.
        mask = editor.call(product, aten.unsqueeze.default, mask, 0)
    if mask is not None and dtype_of(mask) != dtype_of(scores.q):
        mask = editor.call(product, aten.to.dtype, mask, dtype_of(scores.q))
    fused = editor.call(
        product,
        aten.scaled_dot_product_attention.default,
        scores.q,
        scores.k,
        product.args[1],
        mask,
        scale=scores.scale,
    )
    editor.replace(product, fused)
    return True


def _is_fusable(scores: Scores, product: fx.Node) -> bool:
    q = scores.q
    k = scores.k
    v = product.args[1]
    # Heads that are shared between queries would be broadcast by a product, and are refused by the
    # call.
    heads = [shape_of(each)[1] if rank_of(each) == 4 else None for each in (q, k, v)]
    one_type = len({dtype_of(each) for each in (q, k, v, product)}) == 1
    # The call adds the mask in the operands' type, in which a wider one's numbers may not exist.
    is_mask_held = scores.mask is None or holds(dtype_of(q), dtype_of(scores.mask))
    is_one = None not in heads and len({str(size) for size in heads}) == 1
    return is_one and one_type and is_mask_held


def _product(softmax: fx.Node) -> fx.Node | None:
    """The product of the probabilities with the values; all between has one reader."""
    node = _next(softmax)
    user = only_user(node)
    between = []
    while is_call(user, *CASTS, aten.dropout.default):
        assert user is not None
        if is_call(user, aten.dropout.default) and user.args[2]:
            return None
        between.append(user)
        user = only_user(user)
    is_left = is_call(user, aten.matmul.default) and user is not None and user.args[1] is not node
    # The call rounds the probabilities to the product's type once, and to no other.
    is_kept = all(holds(dtype_of(each), dtype_of(user)) for each in between)
    return user if is_left and is_kept else None


def _next(softmax: fx.Node) -> fx.Node:
    """The softmax, or what replaces its NaNs by zero."""
    if len(softmax.users) != 2:
        return softmax
    tests = [each for each in softmax.users if is_call(each, aten.isnan.default)]
    rest = [each for each in softmax.users if is_call(each, aten.where.ScalarSelf)]
    if len(tests) == len(rest) == 1 and rest[0].args == (tests[0], 0.0, softmax):
        return rest[0]
    return softmax


def _scores(editor: Editor, node: Any) -> Scores | None:
    node = _uncast(node)
    if only_user(node) is None:
        return None
    scaled, mask = _masked(editor, node) if is_addition(node) else (_product_of(editor, node), None)
    if scaled is None:
        return None
    q, k = (_scaled(editor, each) for each in scaled.node.args[:2])
    turned = _turned(k.node)
    if turned is None:
        return None
    return Scores(q.node, turned, scaled.scale * q.scale * k.scale, mask)


def _masked(editor: Editor, total: fx.Node) -> tuple[Scaled | None, fx.Node | None]:
    """The product and the mask that a node adds up."""
    for one, mask in (total.args, total.args[::-1]):
        scaled = _product_of(editor, one)
        # A mask that widens the scores has rows that no query of the call has.
        is_inside = scaled is not None and is_same_shape(total, scaled.node)
        if is_inside and isinstance(mask, fx.Node) and rank_of(mask) in _MASKS:
            return scaled, mask
    return None, None


def _product_of(editor: Editor, node: Any) -> Scaled | None:
    """A matrix product under casts and scales."""
    if not isinstance(node, fx.Node):
        return None
    found = _scaled(editor, _uncast(node))
    product = _uncast(found.node)
    is_product = is_call(product, aten.matmul.default) and only_user(product) is not None
    return Scaled(product, found.scale) if is_product else None


def _uncast(node: Any) -> Any:
    """What casts that change no number were made of; others change the scores."""
    while is_call(node, *CASTS) and is_widening(node):
        node = node.args[0]
    return node


def _scaled(editor: Editor, node: Any) -> Scaled:
    """Take the factors off a tensor."""
    scale = 1.0
    while is_call(node, aten.mul.Tensor, aten.div.Tensor):
        sides = [(a, number(editor, b, a)) for a, b in (node.args, node.args[::-1])]
        if is_call(node, aten.div.Tensor):
            sides = sides[:1]
        known = [(a, factor) for a, factor in sides if factor and isinstance(a, fx.Node)]
        if not known:
            break
        factor = known[0][1]
        assert factor is not None
        scale = scale * factor if is_call(node, aten.mul.Tensor) else scale / factor
        node = known[0][0]
    return Scaled(node, scale)


def number(editor: Editor, value: Any, beside: Any) -> float | None:
    """A Python number, or that of a weight with one element; None for everything else.

    A weight with more axes than what it stands beside is no number: it adds axes to that.

    Args:
        editor: reads weights.
        value: a number, a node, or anything else that an argument may be.
        beside: the node that it is added to or multiplied with; bounds its rank.
    """
    if isinstance(value, int | float):
        return float(value)
    weight = editor.weight(value)
    is_number = weight is not None and weight.numel() == 1 and weight.dim() <= rank_of(beside)
    return float(weight) if weight is not None and is_number else None


def _turned(node: Any) -> Any:
    """The keys whose last two axes a node exchanges, merged batch and heads in between or not."""
    if _swaps_last(node):
        return node.args[0]
    if not is_call(node, *RESHAPES) or not _swaps_last(node.args[0]):
        return None
    merged = node.args[0].args[0]
    if not is_call(merged, *RESHAPES) or rank_of(merged) != 3:
        return None
    k = merged.args[0]
    want = (*shape_of(k)[:2], *shape_of(k)[:1:-1])
    is_same = [str(size) for size in want] == [str(size) for size in shape_of(node)]
    return k if rank_of(k) == 4 and is_same and _same_rows(k, merged) else None


def _same_rows(k: fx.Node, merged: fx.Node) -> bool:
    return [str(s) for s in shape_of(k)[2:]] == [str(s) for s in shape_of(merged)[1:]]


def _swaps_last(node: Any) -> bool:
    if not is_call(node, *_TURNS):
        return False
    rank = rank_of(node)
    if is_call(node, aten.transpose.int):
        return {axis % rank for axis in node.args[1:]} == {rank - 2, rank - 1}
    order = [axis % rank for axis in node.args[1]]
    return order == [*range(rank - 2), rank - 1, rank - 2]
