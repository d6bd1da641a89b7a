"""What a graph must be for a precision: opsets that have its types, and no control flow."""

import onnx_ir as ir

from services.contracts.errors import UnsupportedGraphError
from services.contracts.hardware.kinds import Precision

_MIN_OPSET = {
    Precision.FP32: 1,
    Precision.FP16: 7,
    # From here on Cast and most ops take bfloat16.
    Precision.BF16: 13,
    # From here on DequantizeLinear takes one scale per channel.
    Precision.INT8: 13,
    Precision.INT8_WEIGHT_ONLY: 13,
    # From here on QuantizeLinear and DequantizeLinear take float8.
    Precision.FP8: 19,
}


def check_limits(model: ir.Model, precision: Precision) -> None:
    """Refuse a graph that cannot be typed for a precision.

    Raises:
        UnsupportedGraphError: control flow, or an opset without the types.
    """
    opset = model.opset_imports.get("", 0)
    if opset < _MIN_OPSET[precision]:
        raise UnsupportedGraphError(
            f"{precision} needs opset {_MIN_OPSET[precision]}, {opset} found; convert the model "
            "with onnx.version_converter.convert_version"
        )
    for node in model.graph:
        if any(isinstance(attribute.value, ir.Graph) for attribute in node.attributes.values()):
            raise UnsupportedGraphError(
                f"control flow cannot be typed {precision}; build it in fp32",
                op_type=node.op_type,
                node=node.name or "",
                opset=opset,
            )
