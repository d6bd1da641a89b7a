"""Quantized ops give the integers that ONNX's own reference gives, none off by one."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.reference import ReferenceEvaluator
from torch.export import Dim

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.onnx_to_fx.dtypes import tensor_sharing_memory
from services.contracts.errors import UnsupportedGraphError
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

P = onnx.TensorProto
INTEGERS = (P.UINT8, P.INT8, P.UINT16, P.INT16, P.UINT4, P.INT4, P.UINT2, P.INT2)
FLOATS = (P.FLOAT8E4M3FN, P.FLOAT8E4M3FNUZ, P.FLOAT8E5M2, P.FLOAT8E5M2FNUZ, P.FLOAT4E2M1)
RNG = np.random.default_rng(0)
# Of one scale for everything, one per row, per column (twice), and per block of a row.
GRAINS: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "whole": ((), {}),
    "rows": ((6,), {"axis": 0}),
    "columns": ((10,), {"axis": -1}),
    "blocks": ((6, 4), {"axis": 1, "block_size": 3}),
}


def one_node(op_type: str, arrays: list[np.ndarray], opset: int, **attributes: Any) -> Any:
    """A model of one node: x is an input with open sizes, the others are weights."""
    names = [f"i{position}" for position in range(len(arrays))]
    node = make_node(op_type, names, ["y"], **attributes)
    kind = onnx.helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
    axes = [f"d{axis}" for axis in range(arrays[0].ndim)]
    weights = [
        onnx.numpy_helper.from_array(array, name)
        for array, name in zip(arrays[1:], names[1:], strict=True)
    ]
    inputs = [make_tensor_value_info(names[0], kind, axes)]
    outputs = [make_tensor_value_info("y", P.UNDEFINED, None)]
    graph = make_graph([node], "g", inputs, outputs, weights)
    return make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=10)


def assert_equals_reference(
    built: onnx.ModelProto, x: np.ndarray, *, is_exported: bool = False
) -> None:
    """Bit for bit, eagerly or as an exported program with open sizes."""
    with np.errstate(all="ignore"):
        (want,) = ReferenceEvaluator(built).run(None, {"i0": x})
    wanted, given = tensor_sharing_memory(want), tensor_sharing_memory(x)
    module: Any = graph_module_from_onnx(built)
    (got,) = (exported(module, given) if is_exported else module)(given)
    assert got.dtype == wanted.dtype
    view = torch.uint8 if got.dtype.is_floating_point and got.dtype.itemsize == 1 else got.dtype
    torch.testing.assert_close(got.view(view), wanted.view(view), rtol=0, atol=0)


def exported(module: torch.fx.GraphModule, given: torch.Tensor) -> Any:
    """The module after torch.export, every size open."""
    dims = (dict.fromkeys(range(given.dim()), Dim.AUTO),)
    with warnings.catch_warnings():
        # torch's own deprecations inside export are not ours to mend.
        warnings.simplefilter("ignore")
        return torch.export.export(module, (given,), dynamic_shapes=dims, strict=False).module()


def numbers(shape: tuple[int, ...], elem_type: int) -> np.ndarray:
    """Elements over the whole range of a quantized type."""
    kind = onnx.helper.tensor_dtype_to_np_dtype(elem_type)
    if elem_type in FLOATS:
        return RNG.standard_normal(shape).astype(np.float32).astype(kind)
    bits = {P.UINT4: 4, P.INT4: 4, P.UINT2: 2, P.INT2: 2}.get(elem_type, kind.itemsize * 8)
    return RNG.integers(0, 1 << bits, shape).astype(kind)


def quantize(target: int, grain: str) -> tuple[onnx.ModelProto, np.ndarray]:
    """QuantizeLinear to a type, and what to feed it."""
    shape, attributes = GRAINS[grain]
    x = (RNG.standard_normal((6, 10)) * 40).astype(np.float32)
    scale = RNG.uniform(0.1, 3, shape).astype(np.float32)
    zero = numbers(shape, target) if target in INTEGERS else np.zeros_like(numbers(shape, target))
    return one_node("QuantizeLinear", [x, scale, zero], 25, **attributes), x


def dequantize(source: int, grain: str, scale: type) -> tuple[onnx.ModelProto, np.ndarray]:
    """DequantizeLinear of a type, and what to feed it."""
    shape, attributes = GRAINS[grain]
    x = numbers((6, 10), source)
    arrays = [x, RNG.uniform(0.1, 3, shape).astype(scale)]
    if source in INTEGERS:
        arrays.append(numbers(shape, source))
    return one_node("DequantizeLinear", arrays, 25, **attributes), x


@pytest.mark.parametrize("grain", GRAINS)
@pytest.mark.parametrize("target", [*INTEGERS, *FLOATS])
def test_quantize(target: int, grain: str) -> None:
    assert_equals_reference(*quantize(target, grain))


@pytest.mark.parametrize("grain", GRAINS)
@pytest.mark.parametrize("source", [*INTEGERS, *FLOATS, P.INT32])
@pytest.mark.parametrize("scale", [np.float32, np.float16])
def test_dequantize(source: int, grain: str, scale: type) -> None:
    assert_equals_reference(*dequantize(source, grain, scale))


@pytest.mark.parametrize("elem_type", [P.INT8, P.UINT16, P.INT4, P.FLOAT8E4M3FN, P.FLOAT4E2M1])
def test_exported(elem_type: int) -> None:
    assert_equals_reference(*quantize(elem_type, "blocks"), is_exported=True)
    assert_equals_reference(*dequantize(elem_type, "blocks", np.float32), is_exported=True)


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23, 24])
def test_every_version_quantizes(opset: int) -> None:
    x = (RNG.standard_normal((4, 8)) * 40).astype(np.float32)
    arrays = [np.float32(0.7), np.int8(-3)]
    built = one_node("QuantizeLinear", [x, *map(np.asarray, arrays)], max(opset, 13))
    built.opset_import[0].version = opset
    (got,) = graph_module_from_onnx(built)(torch.from_numpy(x))
    want = np.clip(np.rint(x / np.float32(0.7)) - 3, -128, 127)
    np.testing.assert_array_equal(got.numpy(), want.astype(np.int8))


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_products_of_matrices(kind: type) -> None:
    limits = np.iinfo(kind)
    a = RNG.integers(limits.min, limits.max, (5, 300), endpoint=True).astype(kind)
    b = RNG.integers(limits.min, limits.max, (300, 7), endpoint=True).astype(kind)
    rows, columns = (RNG.integers(0, 99, shape).astype(kind) for shape in ((5, 1), (1, 7)))
    assert_equals_reference(one_node("MatMulInteger", [a, b, rows, columns], 10), a)
    scales = [RNG.uniform(0.001, 0.01, shape).astype(np.float32) for shape in ((5, 1), (1, 7))]
    end = [np.float32(0.3), kind(9)]
    arrays = [a, scales[0], rows, b, scales[1], columns, *map(np.asarray, end)]
    assert_equals_reference(one_node("QLinearMatMul", arrays, 21), a)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_products_of_images(kind: type) -> None:
    limits = np.iinfo(kind)
    x = RNG.integers(limits.min, limits.max, (2, 4, 9, 8), endpoint=True).astype(kind)
    w = RNG.integers(limits.min, limits.max, (6, 2, 3, 3), endpoint=True).astype(kind)
    window = {"group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1]}
    zero = np.asarray(kind(7))
    assert_equals_reference(one_node("ConvInteger", [x, w, zero], 10, **window), x)
    scales = RNG.uniform(0.001, 0.01, 6).astype(np.float32)
    bias = RNG.integers(-5000, 5000, 6).astype(np.int32)
    zeros = RNG.integers(0, 99, 6).astype(kind)
    head = [x, np.asarray(np.float32(0.02)), zero, w, scales, zeros]
    arrays = [*head, np.asarray(np.float32(0.01)), zero, bias]
    assert_equals_reference(one_node("QLinearConv", arrays, 10, **window), x)


REFUSALS = {
    "y_zero_point must be constant": (
        "g (float[N] x, float8e4m3fn z) => (float8e4m3fn[N] y) { y = QuantizeLinear(x, s, z) }"
    ),
    "two float types need the attribute precision": (
        "g (float16[N] x) => (uint8[N] y) { y = QuantizeLinear(x, s) }"
    ),
    "output_dtype 3 is not the zero point's element type": (
        "g (float[N] x, uint8 z) => (uint8[N] y)"
        " { y = QuantizeLinear <output_dtype = 3> (x, s, z) }"
    ),
    "INT32 is no type to quantize to": (
        "g (float[N] x, int32 z) => (int32[N] y) { y = QuantizeLinear(x, s, z) }"
    ),
    "input 2 holds more elements": (
        "g (uint8[N, M, K] x, uint8[L] z) => (int32[N, M, M] y) { y = MatMulInteger(x, x, z) }"
    ),
    "needs block_size": "g (float[N, M] x) => (uint8[N, M] y) { y = QuantizeLinear(x, t) }",
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_is_not_exact_is_refused(reason: str) -> None:
    weights = {"s": np.float32(0.5), "t": np.ones((2, 2), np.float32)}
    with pytest.raises(UnsupportedGraphError) as caught:
        graph_module_from_onnx(model(REFUSALS[reason], opset=25, **weights))
    assert reason.replace("y_zero_point", "a zero point of small floats") in str(caught.value)


def test_integers_that_16_bits_cannot_hold() -> None:
    text = "g (int32[N] x) => (float[N] y) { y = DequantizeLinear(x, s) }"
    module = graph_module_from_onnx(
        model(text, opset=25, s=np.float32(2**-10)), float_dtype=torch.float16
    )
    (y,) = module(torch.tensor([1_024_000, -71_680], dtype=torch.int32))
    assert y.tolist() == [1000.0, -70.0]


def test_the_scale_of_the_data_itself() -> None:
    text = """g (float[N, M] x) => (uint8[N, M] y, float s, uint8 z)
        { y, s, z = DynamicQuantizeLinear(x) }"""
    built = model(text)
    module, reference = graph_module_from_onnx(built), ReferenceEvaluator(built)
    for x in (RNG.standard_normal((4, 9)), np.zeros((2, 2)), -np.ones((1, 3)), np.full((1, 3), 5)):
        wanted = reference.run(None, {"x": x.astype(np.float32)})
        for got, want in zip(module(torch.from_numpy(x).float()), wanted, strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
