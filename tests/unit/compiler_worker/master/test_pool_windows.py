"""Windows of means are cut to the map that they cover, and compute the same."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser

from compiler_worker.master.normalise import normalise


@pytest.mark.parametrize(
    ("shape", "pool", "wanted"),
    [
        ("7, 5", "kernel_shape = [1280, 6], strides = [1280, 2]", [7, 5]),
        ("7, 5", "kernel_shape = [1280, 6], strides = [1280, 2], pads = [0, 0, 0, 0]", [7, 5]),
        ("7, 5", 'auto_pad = "NOTSET", kernel_shape = [9, 9], strides = [9, 9]', [7, 5]),
        ("7, 5", 'auto_pad = "VALID", kernel_shape = [7, 5], strides = [9, 9]', [7, 5]),
        ("7, 5", "kernel_shape = [2, 5], strides = [2, 2]", [2, 5]),
        ("7, 5", "kernel_shape = [9, 9], strides = [9, 1]", [7, 9]),
        ("7, 5", "kernel_shape = [9, 9], strides = [9, 9], dilations = [1, 1]", [7, 5]),
        ("7, W", "kernel_shape = [9, 9], strides = [9, 9]", [7, 9]),
        ("7, 5", "kernel_shape = [9, 9], strides = [9, 9], pads = [1, 0, 1, 0]", [9, 9]),
    ],
)
def test_a_window_is_no_larger_than_the_map(shape: str, pool: str, wanted: list[int]) -> None:
    built = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[N, 4, {shape}] x) => (float[N, 4, P, Q] y)
        {{ y = AveragePool <ceil_mode = 1, {pool}> (x) }}"""
    )
    model = ir.from_proto(built)
    normalise(model)
    [node] = model.graph.all_nodes()
    assert list(node.attributes["kernel_shape"].as_ints()) == wanted
    normalised = ir.to_proto(model)
    normalise(model)
    assert ir.to_proto(model) == normalised


def test_the_mean_is_the_same() -> None:
    built = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[N, 4, 7, 5] x) => (float[N, 4, 1, 2] y)
        { y = AveragePool <ceil_mode = 1, kernel_shape = [64, 4], strides = [64, 4]> (x) }"""
    )
    model = ir.from_proto(built)
    normalise(model)
    x = np.random.default_rng(0).standard_normal((2, 4, 7, 5)).astype(np.float32)
    wanted = np.concatenate(
        [x[..., :4].mean((2, 3), keepdims=True), x[..., 4:].mean((2, 3), keepdims=True)], axis=3
    )
    assert model.graph.node(0).attributes["kernel_shape"].as_ints()[0] == 7
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    (y,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    assert y == pytest.approx(wanted, abs=1e-6)
