"""Products with a bias become one library call, with the activation that follows where it can.

Legend: K = size of the input, M = size of the output.

CUDA's matrix library adds a bias, and takes ReLU or GELU, while it writes the result; as
calls of their own each reads and writes everything once more. The GELU it takes is the one
by tanh. In float16 that differs from the one by erf about as much as rounding the result
does (2e-4 of it, root mean square), in bfloat16 an eighth of that; so the one by erf is
given to it in these two types, and the engine's proof decides.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from compiler_worker.fx_rewrites.editor import (
    NARROW,
    Editor,
    argument,
    aten,
    dtype_of,
    is_addition,
    is_call,
    only_user,
    shape_of,
)


def join_biases(editor: Editor) -> int:
    """Rewrite `x @ weight + bias` to one call over rows; the number of them."""
    return sum(_join(editor, node) for node in editor.calls(aten.matmul.default))


def join_activations(editor: Editor) -> int:
    """Put ReLU and GELU after such a call into it; the number of them."""
    calls = editor.calls(aten.relu.default, aten.gelu.default)
    return sum(_activate(editor, node) for node in calls)


def _join(editor: Editor, product: fx.Node) -> bool:
    weight_KM = editor.weight(product.args[1])
    if weight_KM is None or weight_KM.dim() != 2:
        return False
    total, bias = with_bias(editor, product, weight_KM.shape[1])
    bias_M = editor.weight(bias)
    if bias_M is None or bias_M.dtype != weight_KM.dtype:
        return False
    x = product.args[0]
    rows = editor.call(total, aten.reshape.default, x, [-1, weight_KM.shape[0]])
    joined = editor.call(total, aten.addmm.default, bias, rows, product.args[1])
    sizes = [*leading_sizes(editor, total, x), weight_KM.shape[1]]
    editor.replace(total, editor.call(total, aten.reshape.default, joined, sizes))
    return True


def with_bias(editor: Editor, product: fx.Node, num_outputs: int) -> tuple[fx.Node, Any]:
    """What a product with its bias ends in, and the bias; itself and None without any.

    The bias of a linear layer is its own argument, of another product a constant [M] that is added
    by the only reader of it.

    Args:
        editor: knows which nodes are constant.
        product: of any number of rows.
        num_outputs: M.
    """
    if is_call(product, aten.linear.default):
        return product, argument(product, 2, "bias")
    total = only_user(product)
    if total is None or not is_addition(total) or dtype_of(total) != dtype_of(product):
        return product, None
    others = [each for each in total.args if each is not product]
    bias = editor.weight(others[0]) if len(others) == 1 else None
    is_bias = bias is not None and bias.shape == (num_outputs,)
    return (total, others[0]) if is_bias else (product, None)


def leading_sizes(editor: Editor, before: fx.Node, x: Any) -> list[Any]:
    """All sizes of a tensor but the last, as numbers or as nodes that compute them.

    Args:
        editor: inserts nodes for sizes that are symbols.
        before: the node that they are inserted before.
        x: the tensor's node.
    """
    return [
        size if isinstance(size, int) else editor.call(before, aten.sym_size.int, x, axis)
        for axis, size in enumerate(shape_of(x)[:-1])
    ]


def _activate(editor: Editor, node: fx.Node) -> bool:
    source = node.args[0]
    is_gelu = is_call(node, aten.gelu.default)
    if not isinstance(source, fx.Node) or dtype_of(node) not in NARROW:
        return False
    joined = source.args[0] if is_call(source, aten.reshape.default) else source
    if not is_call(joined, aten.addmm.default) or not isinstance(joined, fx.Node):
        return False
    # beta and alpha are keywords: the call with an activation takes them otherwise.
    if len(joined.args) != 3 or joined.kwargs or not only_user(source) or not only_user(joined):
        return False
    target = aten._addmm_activation.default  # noqa: SLF001 - an op of torch
    active = editor.call(node, target, *joined.args, use_gelu=is_gelu)
    if joined is not source:
        active = editor.call(node, source.target, active, *source.args[1:])
    editor.replace(node, active)
    return True
