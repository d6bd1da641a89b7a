"""Small ONNX models written as text, for tests."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import parser


def model(graph: str, *, opset: int = 20, **initializers: np.ndarray) -> onnx.ModelProto:
    """Parse a graph in ONNX's text form and add initializers by name."""
    built = parser.parse_graph(graph)
    built.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in initializers.items()
    )
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(built, opset_imports=opsets, ir_version=10)
