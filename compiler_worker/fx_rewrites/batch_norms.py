"""Batch normalisation after a convolution becomes part of its weights.

Legend: C = output channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from compiler_worker.fx_rewrites.editor import Editor, argument, aten, is_call, only_user

CONVOLUTIONS = (
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv3d.default,
    aten.conv1d.padding,
    aten.conv2d.padding,
    aten.conv3d.padding,
)


class Affine(NamedTuple):
    """A normalisation with recorded statistics, as `scale * y + shift`, float64 [C] each."""

    scale: torch.Tensor
    shift: torch.Tensor


def fold_batch_norms(editor: Editor) -> int:
    """Fold each normalisation that alone reads a convolution; the number of them."""
    return sum(_fold(editor, node) for node in editor.calls(aten.batch_norm.default))


def _fold(editor: Editor, norm: fx.Node) -> bool:
    conv = norm.args[0]
    if not is_call(conv, *CONVOLUTIONS) or not isinstance(conv, fx.Node) or not only_user(conv):
        return False
    weight = editor.weight(conv.args[1])
    affine = _affine(editor, norm)
    bias_node = argument(conv, 2, "bias")
    bias = editor.weight(bias_node)
    if weight is None or affine is None or (bias is None and bias_node is not None):
        return False
    # In float64, and rounded once: products of rounded weights would err twice.
    scale = affine.scale.reshape(-1, *[1] * (weight.dim() - 1))
    bias_C = torch.zeros_like(affine.shift) if bias is None else bias.detach().double()
    new_weight = (weight.detach().double() * scale).to(weight.dtype)
    new_bias = (bias_C * affine.scale + affine.shift).to(weight.dtype)
    args: list[Any] = [conv.args[0], editor.add_weight(new_weight, norm)]
    args += [editor.add_weight(new_bias, norm), *conv.args[3:]]
    kwargs = {name: value for name, value in conv.kwargs.items() if name != "bias"}
    editor.replace(norm, editor.call(norm, conv.target, *args, **kwargs))
    return True


def _affine(editor: Editor, norm: fx.Node) -> Affine | None:
    """None when it normalises by the statistics of the call, or by computed ones."""
    weights = [editor.weight(each) for each in norm.args[1:5]]
    is_computed = any(
        given is not None and weight is None
        for given, weight in zip(norm.args[1:5], weights, strict=True)
    )
    scale, bias, mean, variance = weights
    is_training = norm.args[5]
    epsilon = norm.args[7]
    if is_training or is_computed or mean is None or variance is None:
        return None
    assert isinstance(epsilon, float)
    inverse = (variance.detach().double() + epsilon).rsqrt()
    factor = inverse if scale is None else inverse * scale.detach().double()
    shift = -mean.detach().double() * factor
    return Affine(factor, shift if bias is None else shift + bias.detach().double())
