"""Convolutions with dynamic sizes get weights that are arranged when the engine is built.

Inductor arranges them so for static sizes alone; with dynamic ones oneDNN moved the weights of
every convolution in every call, which was nearly half of ResNet-50's time. Which arrangement is
best depends little on the batch: the sizes of the trace serve. Where oneDNN wants another one for
the sizes of a call, it moves them then, as before.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

mkldnn = torch.ops.mkldnn
onednn = torch.ops.onednn
_FLOATS = mkldnn._convolution_pointwise.default  # noqa: SLF001 - an op of torch
_BYTES = onednn.qconv_pointwise.default


class PackConvolutions(CustomGraphPass):
    """Runs on the frozen graph, before a sum or an activation is put into a convolution."""

    def __call__(self, graph: fx.Graph) -> None:
        """Replace weights by arranged ones."""
        for node in graph.find_nodes(op="call_function", target=_FLOATS):
            _pack(graph, node, 1, _arranged_floats)
        for node in graph.find_nodes(op="call_function", target=_BYTES):
            _pack(graph, node, 3, _arranged_bytes)

    def uuid(self) -> Any:
        """Changes with this code: Inductor keeps what it compiled by it."""
        return get_hash_for_files((__file__,))


Arrange = Callable[[fx.Node, torch.Tensor, list[int]], torch.Tensor | None]


def _pack(graph: fx.Graph, node: fx.Node, index: int, arrange: Arrange) -> None:
    weight = node.args[index]
    sizes = _sizes(node.args[0])
    values = _value(graph, weight)
    arranged = arrange(node, values, sizes) if values is not None and sizes is not None else None
    if arranged is None or graph.owning_module is None:
        return
    name = f"packed_{node.name}"
    graph.owning_module.register_buffer(name, arranged)
    with graph.inserting_before(node):
        replaced = graph.get_attr(name)
    # The graph sees the sizes of the weight, whatever its arrangement is.
    replaced.meta.update(weight.meta)  # type: ignore[union-attr]
    node.update_arg(index, replaced)


def _arranged_floats(node: fx.Node, values: torch.Tensor, sizes: list[int]) -> torch.Tensor | None:
    if values.is_mkldnn:
        return None
    arrange = mkldnn._reorder_convolution_weight  # noqa: SLF001 - an op of torch
    found: torch.Tensor = arrange(values, *node.args[3:7], sizes)
    return found


def _arranged_bytes(node: fx.Node, values: torch.Tensor, sizes: list[int]) -> torch.Tensor | None:
    """Freezing has arranged these without knowing sizes; bytes are bytes in any arrangement."""
    scale = node.args[1]
    zero = node.args[2]
    scales_M = node.args[4]
    window = node.args[7:11]
    scales = _value(node.graph, scales_M)
    if scales is None or not values.is_mkldnn or window[-1] != 1 or isinstance(scale, fx.Node):
        return None
    found: torch.Tensor = onednn.qconv_prepack(
        values.to_dense(), scales, scale, zero, *window, sizes
    )
    return found


def _value(graph: fx.Graph, node: Any) -> torch.Tensor | None:
    """The constant that a node names; None for another node."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value = getattr(graph.owning_module, str(node.target), None)
    return value if isinstance(value, torch.Tensor) else None


def _sizes(x: Any) -> list[int] | None:
    """Sizes of an image, those of the trace where they are dynamic; None without any."""
    found = [s if isinstance(s, int) else s.node.hint for s in x.meta["val"].shape]
    return None if None in found else found
