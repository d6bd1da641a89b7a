"""Ops that are converted as what ONNX writes them in."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import parser

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from services.contracts.errors import UnsupportedGraphError
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

RNG = np.random.default_rng(0)
TABLES = {name: RNG.random((6, 2), np.float32) for name in ("cos_cache", "sin_cache")}
# Opset, input, nodes and constants. Some names are those that the bodies use inside.
CASES: dict[str, tuple[int, str, str, dict[str, np.ndarray]]] = {
    "an attribute of the node": (24, "float[N, M] X", "y = Swish <alpha = 2.5> (X)", {}),
    "an attribute's default": (24, "float[N, M] X", "y = Swish (X)", {}),
    "an op that is older than its body": (9, "float[N, M] X", "y = Selu <alpha = 1.5> (X)", {}),
    "numbers of the node": (
        10,
        "float[N, M] X",
        "z = Shrink <bias = 0.5, lambd = 0.25> (X) y = ThresholdedRelu <alpha = 0.1> (z)",
        {},
    ),
    "places in an image": (
        20,
        "float[N, M] X",
        """row = Unsqueeze (X, one) theta = Concat <axis = 1> (row, row, row)
        y = AffineGrid (theta, s)""",
        {"one": np.array([1]), "s": np.array([3, 1, 4, 5, 2])},
    ),
    "an input left out": (
        13,
        "float[N, M] X",
        'y, z = SoftmaxCrossEntropyLoss <ignore_index = 1, reduction = "sum"> (X, labels)',
        {"labels": np.array([0, 1, 2])},
    ),
    "indices of the call": (
        23,
        "float[N, M] X",
        """x3 = Unsqueeze (X, two) wide = Expand (x3, shape) half = Mul (wide, wide)
        i = ArgMax <axis = 2, keepdims = 0> (half)
        y = RotaryEmbedding <num_heads = 2, interleaved = 1> (half, cos_cache, sin_cache, i)""",
        {**TABLES, "two": np.array([2]), "shape": np.array([1, 1, 8])},
    ),
    "sizes of constants": (
        18,
        "float[N, M] shape",
        "y = CenterCropPad (shape, x_shape)",
        {"x_shape": np.array([2, 9])},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_body_gives_what_onnxruntime_gives(
    case: tuple[int, str, str, dict[str, np.ndarray]],
) -> None:
    opset, given, nodes, constants = case
    built = model(f"g ({given}) => (float y) {{ {nodes} }}", opset=opset, **constants)
    session = onnxruntime.InferenceSession(built.SerializeToString())
    x = RNG.standard_normal((3, 4), np.float32)
    (want,) = session.run(None, {session.get_inputs()[0].name: x})
    (got,) = graph_module_from_onnx(built)(torch.from_numpy(x))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def flex(score: str) -> onnx.ModelProto:
    """Attention whose scores a graph of the node's own changes."""
    text = f"""<ir_version: 13, opset_import: ["" : 26, "ai.onnx.preview" : 1]>
    g (float[B, 2, N, 4] q, float[1] Scale) => (float y) {{
    y = ai.onnx.preview.FlexAttention <score_mod = s (float[A, B, C, D] e) => (float[A, B, C, D] r)
    {{ r = {score} }}> (q, q, q) }}"""
    return parser.parse_model(text)


def test_a_graph_of_the_node_stands_in_the_body() -> None:
    (got,) = graph_module_from_onnx(flex("Tanh (e)"))(q := torch.rand(2, 2, 3, 4), torch.ones(1))
    want = (q @ q.mT / 2).tanh().softmax(-1) @ q
    torch.testing.assert_close(got, want)


def test_a_graph_that_uses_names_around_the_node_is_refused() -> None:
    with pytest.raises(UnsupportedGraphError, match="uses 'Scale' from around the node"):
        graph_module_from_onnx(flex("Mul (e, Scale)"))


def test_a_body_that_asks_for_more_sizes_is_refused() -> None:
    text = """g (float[B, C, T] x, float[C, 1, K] w) => (float y, float s) {
    y, s = CausalConvWithState (x, w) }"""
    with pytest.raises(UnsupportedGraphError, match="only where more of its inputs is known"):
        graph_module_from_onnx(model(text, opset=27))


def test_weights_say_how_a_convolution_with_state_is_written() -> None:
    text = """g (float[B, 3, T] x, float[B, 3, P] past) => (float y, float s) {
    y, s = CausalConvWithState (x, w, , past) }"""
    weight = RNG.random((3, 1, 3), np.float32)
    module = graph_module_from_onnx(model(text, opset=27, w=weight))
    for length in (1, 5):
        x, past = torch.rand(2, 3, length), torch.rand(2, 3, 2)
        whole = torch.cat([past, x], 2)
        want = torch.conv1d(whole, torch.from_numpy(weight), groups=3)
        torch.testing.assert_close(module(x, past), (want, whole[..., -2:]))
