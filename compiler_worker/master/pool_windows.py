"""Windows of means that reach past the map that they cover.

Models take the mean of a whole map by a window of any size above it (1280 x 1280 over 7 x 7 in an
EfficientNet). Inductor visits every place of such a window, OpenVINO refuses it, and the evaluator
of ONNX takes 16 GiB for it.
"""

from collections.abc import Sequence
from itertools import repeat

import onnx_ir as ir

_Sizes = Sequence[int | ir.SymbolicDim]


def cut_windows(model: ir.Model) -> None:
    """Cut them to maps of known size, in place: what is computed stays the same.

    Args:
        model: with the shapes of its values.
    """
    for node in model.graph.all_nodes():
        if node.op_type == "AveragePool" and node.domain == "":
            shape = node.inputs[0].shape if node.inputs[0] else None
            if shape is not None and (kernel := _cut(node, shape.dims[2:])):
                node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", kernel)


def _cut(node: ir.Node, sizes: _Sizes) -> list[int] | None:
    """The kernel without what lies past the map on axes that one window covers."""
    given = {n: a.as_ints() for n, a in node.attributes.items() if a.type == ir.AttributeType.INTS}
    kernel = list(given["kernel_shape"])
    pads_itself = node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
    if pads_itself or any(given.get("pads", ())):
        return None
    steps = zip(given.get("strides", repeat(1)), given.get("dilations", repeat(1)), strict=False)
    for axis, (size, (stride, dilation)) in enumerate(zip(sizes, steps, strict=False)):
        # One more window would begin within the map.
        if isinstance(size, int) and dilation == 1 and 0 < kernel[axis] - size < stride:
            kernel[axis] = size
    return kernel
