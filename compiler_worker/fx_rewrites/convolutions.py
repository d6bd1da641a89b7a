"""Convolutions as cuDNN likes them: channels last, with sum and ReLU in the same kernel.

Inductor would move weights to that layout in every call, because they are arguments, and
launch a kernel of its own for each ReLU.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import fx

from compiler_worker.fx_rewrites.editor import (
    CASTS,
    Editor,
    argument,
    aten,
    dtype_of,
    is_addition,
    is_call,
    is_same_shape,
    only_user,
    rank_of,
)

_LAST = torch.channels_last


class ConvolutionWindow(NamedTuple):
    """How a two-dimensional convolution moves."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


def use_channels_last(editor: Editor) -> int:
    """Lay weights of convolutions, and images that come from outside, channels last."""
    return sum(_lay(editor, node) for node in editor.calls(aten.conv2d.default))


def fuse_convolutions(editor: Editor) -> int:
    """Put a following ReLU, and a sum before it, into the convolution; the number of ReLUs."""
    _describe_fused()
    return sum(_fuse(editor, node) for node in editor.calls(aten.relu.default))


def _lay(editor: Editor, conv: fx.Node) -> bool:
    weight = editor.weight(conv.args[1])
    if weight is None or (weight.is_contiguous(memory_format=_LAST) and weight.shape[1] != 1):
        return False
    laid = weight.detach().contiguous(memory_format=_LAST)
    conv.update_arg(1, editor.add_weight(laid, conv))
    x = conv.args[0]
    source = x.args[0] if is_call(x, *CASTS) else x  # type: ignore[union-attr]
    # Others follow a convolution that is laid out so already: only what comes in has to be moved.
    if isinstance(source, fx.Node) and source.op == "placeholder":
        conv.update_arg(0, editor.call(conv, aten.clone.default, x, memory_format=_LAST))
    return True


def _fuse(editor: Editor, relu: fx.Node) -> bool:
    source = relu.args[0]
    if not isinstance(source, fx.Node) or only_user(source) is None:
        return False
    if window := _window(editor, source):
        x, weight, bias = (argument(source, index, "") for index in range(3))
        fused = aten.cudnn_convolution_relu.default
        editor.replace(relu, editor.call(relu, fused, x, weight, bias, *window))
        return True
    return _fuse_sum(editor, relu, source)


def _fuse_sum(editor: Editor, relu: fx.Node, total: fx.Node) -> bool:
    if not is_addition(total):
        return False
    for conv, other in (total.args, total.args[::-1]):
        window = _window(editor, conv) if isinstance(conv, fx.Node) else None
        if window is None or only_user(conv) is None:  # type: ignore[arg-type]
            continue
        if not is_same_shape(conv, other) or dtype_of(conv) != dtype_of(other):
            continue
        assert isinstance(conv, fx.Node)
        assert isinstance(other, fx.Node)
        x, weight, bias = (argument(conv, index, "") for index in range(3))
        z, bias = _without_bias(editor, relu, other, bias)
        fused = aten.cudnn_convolution_add_relu.default
        editor.replace(relu, editor.call(relu, fused, x, weight, z, 1.0, bias, *window))
        return True
    return False


def _without_bias(
    editor: Editor, before: fx.Node, other: fx.Node, bias: Any
) -> tuple[fx.Node, Any]:
    """A convolution on the other side gives its bias to this one: Inductor would add it apart."""
    mine = editor.weight(bias)
    its = editor.weight(argument(other, 2, "bias"))
    if not is_call(other, aten.conv2d.default) or only_user(other) is None:
        return other, bias
    if mine is None or its is None:
        return other, bias
    total = (mine.detach().double() + its.detach().double()).to(mine.dtype)
    plain = editor.call(other, other.target, *other.args[:2], None, *other.args[3:])
    editor.replace(other, plain)
    return plain, editor.add_weight(total, before)


def _window(editor: Editor, conv: fx.Node) -> ConvolutionWindow | None:
    """None for what is no convolution of images with weights of the model."""
    if not is_call(conv, aten.conv2d.default) or rank_of(conv) != 4:
        return None
    if editor.weight(conv.args[1]) is None:
        return None
    stride, padding, dilation = (
        _pair(argument(conv, index, "", default)) for index, default in ((3, 1), (4, 0), (5, 1))
    )
    return ConvolutionWindow(stride, padding, dilation, argument(conv, 6, "", 1))


def _pair(value: Any) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * 2 if len(values) == 1 else values


@cache
def _describe_fused() -> None:
    """Declare to torch what the fused kernels return: it has them for CUDA, but not their sizes."""

    def add_relu(x: Any, weight: Any, *rest: Any) -> torch.Tensor:
        _z, _alpha, bias, *window = rest
        return _like_convolved(x, weight, bias, *window)

    torch.library.register_fake("aten::cudnn_convolution_relu", _like_convolved)
    torch.library.register_fake("aten::cudnn_convolution_add_relu", add_relu)


def _like_convolved(x: Any, weight: Any, bias: Any, *window: Any) -> torch.Tensor:
    # As cuDNN chooses: one operand in that layout makes the result so. A wrong guess would have
    # Inductor read the result by wrong strides.
    is_last = any(
        each.is_contiguous(memory_format=_LAST) and not each.is_contiguous() for each in (x, weight)
    )
    result = aten.convolution.default(x, weight, bias, *window[:3], False, [0, 0], window[3])
    layout = _LAST if is_last else torch.contiguous_format
    return torch.empty_like(result, memory_format=layout)
