"""Graphs that a fuzzer found (`tests/faults/graphs`): each gave a wrong answer or raised once."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from services.contracts.errors import UnsupportedGraphError
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

ROUND = "b (int64 i, bool c, float[N] v) => (bool d, float[N] u"
# A graph, its constants, and sizes of x.
GRAPHS: dict[str, tuple[str, dict[str, object], list[tuple[int, ...]]]] = {
    "reduction of a scalar": (
        "g (float x) => (float y, float z) { y = ReduceMax(x)  z = ReduceMin <keepdims = 0> (x) }",
        {},
        [()],
    ),
    "einsum of small integers": (
        """g (float[N, 3] x) => (int32[N] y)
        { i = Cast <to = 6> (x)  y = Einsum <equation = "ij->i"> (i) }""",
        {},
        [(2, 3), (4, 3)],
    ),
    "an integer to the power of a fraction": (
        """g (float[N] x) => (int32[N] y)
        { b = Mul(x, size)  a = Abs(b)  i = Cast <to = 6> (a)  y = Pow(i, exponent) }""",
        {"size": np.float32(1000), "exponent": np.float32(2.5)},
        [(7,)],
    ),
    "an element on the host": (
        f"""g (float[N] x) => (float[N] y, int64[A] z) {{ y, z = Loop <body = {ROUND}, int64 r)
        {{ d = Identity(c)  u = Relu(v)  r = Abs(i) }}> (two, , x) }}""",
        {"two": 2},
        [(3,)],
    ),
    "a bound below zero, computed from a size": (
        """g (float[N, 4] x) => (float[A, 4] y) { n = Shape <end = 1> (x)  m = Neg(n)
        a = Abs(m)  b = Sub(a, two)  y = Slice(x, m, b) }""",
        {"two": [2]},
        [(3, 4), (6, 4)],
    ),
    "a range whose bounds cross": (
        """g (float[N] x) => (int64[A] y)
        { n = Shape(x)  s = Squeeze(n)  y = Range(two, s, one) }""",
        {"two": 2, "one": 1},
        [(1,), (5,)],
    ),
    "an activation of a scalar": (
        "g (float x) => (float y) { y = Celu <alpha = 2.0> (x) }",
        {},
        [()],
    ),
    "integers shrunk by a part of one": (
        """g (float[N] x) => (int64[N] y)
        { b = Mul(x, size)  i = Cast <to = 7> (b)  y = Shrink <bias = 0.25, lambd = 0.5> (i) }""",
        {"size": np.float32(10)},
        [(9,)],
    ),
    "sizes around a loop that its body measures too": (
        """g (float[N, M, 4] x) => (float[N, M, 4] z, int64[A, B] y) {
        q = AveragePool <kernel_shape = [3]> (x)  z, y = Scan <num_scan_inputs = 1, body =
        b (float[N, M, 4] s, float[S, T] r) => (float[N, M, 4] t, int64[3] u) {
        n = Shape(s)  k = Shape(r)  first = Gather(k, nought)  unused = Add(first, nought)
        t = Identity(s)  u = Identity(n) }> (x, q) }""",
        {"nought": [0]},
        [(2, 5, 4), (3, 6, 4)],
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_answers_are_those_of_onnx_runtime(name: str) -> None:
    graph, constants, shapes = GRAPHS[name]
    built = model(graph, **{name: np.asarray(value) for name, value in constants.items()})
    module = graph_module_from_onnx(built)
    for shape in shapes:
        x = np.random.default_rng(1).integers(-4, 5, shape).astype(np.float32)
        found, wanted = module(torch.from_numpy(x)), _by_onnxruntime(built, x)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one.numpy(), other, strict=True)


def test_running_sums_of_one_value_keep_their_element_type_when_compiled() -> None:
    graph = "g (int32[N, 1] x) => (int32[N, 1] y) { y = CumSum <exclusive = 1> (x, axis) }"
    built = model(graph, axis=np.asarray(-1))
    x = np.array([[3], [4]], np.int32)
    (found,) = torch.compile(graph_module_from_onnx(built))(torch.from_numpy(x))
    (wanted,) = _by_onnxruntime(built, x)
    np.testing.assert_array_equal(found.numpy(), wanted, strict=True)


def test_a_convolution_without_channels_is_refused() -> None:
    graph = "g (float[N, 0, 4] x) => (float[N, 2, 4] y) { y = Conv(x, w) }"
    built = model(graph, w=np.zeros((2, 0, 1), np.float32))
    with pytest.raises(UnsupportedGraphError, match="no input channels"):
        graph_module_from_onnx(built)


def test_attention_of_heads_without_elements() -> None:
    graph = """g (float[2, 3, N, 0] x) => (float[2, 3, N, 0] y)
    { y = Attention <softcap = 2.0> (x, x, x) }"""
    x = torch.empty(2, 3, 4, 0)
    (found,) = graph_module_from_onnx(model(graph, opset=23))(x)
    assert found.shape == x.shape


def _by_onnxruntime(built: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(built.SerializeToString())
    return [np.asarray(answer) for answer in session.run(None, {"x": x})]
