"""Batch normalisation after a convolution becomes part of its weights."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.nn.utils.fusion import fuse_conv_bn_weights

from compiler_worker.fx_rewrites.editor import Editor, argument, aten, is_call, only_user

CONVOLUTIONS = (
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv3d.default,
    aten.conv1d.padding,
    aten.conv2d.padding,
    aten.conv3d.padding,
)


def fold_batch_norms(editor: Editor) -> int:
    """Fold each normalisation that alone reads a convolution; the number of them."""
    return sum(_fold(editor, node) for node in editor.calls(aten.batch_norm.default))


def _fold(editor: Editor, norm: fx.Node) -> bool:
    conv = norm.args[0]
    if not is_call(conv, *CONVOLUTIONS) or not isinstance(conv, fx.Node) or not only_user(conv):
        return False
    given = (conv.args[1], argument(conv, 2, "bias"), *norm.args[1:5])
    known = [editor.weight(each) for each in given]
    weight = known[0]
    # One that normalises by the statistics of the call, or by computed ones, stays.
    is_computed = any(g is not None and w is None for g, w in zip(given, known, strict=True))
    is_training = norm.args[5]
    if is_training or is_computed or weight is None or None in given[4:]:
        return False
    # In float64, and rounded once: products of rounded weights would err twice.
    wide: list[Any] = [None if each is None else each.detach().double() for each in known]
    wide_weight, bias, scale, shift, mean, variance = wide
    epsilon: Any = norm.args[7]
    fused = fuse_conv_bn_weights(wide_weight, bias, mean, variance, epsilon, scale, shift)
    parts = [editor.add_weight(each.detach().to(weight.dtype), norm) for each in fused]
    args: list[Any] = [conv.args[0], *parts, *conv.args[3:]]
    kwargs = {name: value for name, value in conv.kwargs.items() if name != "bias"}
    editor.replace(norm, editor.call(norm, conv.target, *args, **kwargs))
    return True
