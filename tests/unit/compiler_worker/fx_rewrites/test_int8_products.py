"""Products of rounded values, as the importer writes them: lowered, merged, and left alone."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser
from torch import fx
from torch.export import Dim

from compiler_worker.fx_rewrites.names import rewrites_for
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from services.contracts.hardware.kinds import Precision
from tests.unit.compiler_worker.fx_rewrites.rewritten import Case

aten, decomposed = torch.ops.aten, torch.ops.quantized_decomposed
REWRITES = ("repeated", "casts", "int8_products")
DYNAMIC = {0: Dim("batch", min=1, max=8)}
# float32, and ties that fall to the other side when a quotient becomes a product.
MAX_REL_L2 = 1e-5
_HEAD = """
<ir_version: 10, opset_import: ["" : 21]>
rounded (float[batch, %s] x) => (float y)
<float s = {0.05}, int8 z = {%d}>
{
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
"""
_PROJECTIONS = """
  wa_d = DequantizeLinear <axis = 1> (wa, wa_s, wa_z)
  wb_d = DequantizeLinear <axis = 1> (wb, wb_s, wb_z)
  a = MatMul (d, wa_d)
  b = MatMul (d, wb_d)
  a_sum = Add (a, a_bias)
  b_sum = Add (b_bias, b)
  y = Concat <axis = -1> (a_sum, b_sum)
}
"""
_RESIDUAL = """
  w_d = DequantizeLinear <axis = 1> (wa, wa_s, wa_z)
  product = MatMul (d, w_d)
  y = Add (product, d)
}
"""
_IMAGES = """
  w_d = DequantizeLinear <axis = 0> (wc, wc_s, wc_z)
  pooled = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (d)
  conv = Conv <pads = [1, 1, 1, 1]> (pooled, w_d, c_bias)
  active = Relu (conv)
  r = QuantizeLinear (active, s, z)
  r_d = DequantizeLinear (r, s, z)
  flat = Flatten (r_d)
  wl_d = DequantizeLinear <axis = 0> (wl, wl_s, wl_z)
  y = Gemm <transB = 1> (flat, wl_d, l_bias)
}
"""
_SHAPES = {"wa": ((16, 16), 1), "wb": ((16, 8), 1), "wc": ((8, 3, 3, 3), 0), "wl": ((5, 128), 0)}


def module(body: str, inner: str, zero: int = 0, **changes: Any) -> fx.GraphModule:
    """A graph in eight bits; weights are drawn, `changes` replaces some of its constants."""
    rng = np.random.default_rng(5)
    arrays: dict[str, Any] = {}
    for name, (shape, axis) in _SHAPES.items():
        arrays[name] = rng.integers(-127, 128, shape).astype(np.int8)
        arrays[f"{name}_s"] = rng.uniform(0.001, 0.01, shape[axis]).astype(np.float32)
        arrays[f"{name}_z"] = np.zeros(shape[axis], np.int8)
    for name, size in (("a_bias", 16), ("b_bias", 8), ("c_bias", 8), ("l_bias", 5)):
        arrays[name] = rng.standard_normal(size).astype(np.float32)
    model: onnx.ModelProto = parser.parse_model(_HEAD % (inner, zero) + body)
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in (arrays | changes).items()
        if name in read
    )
    return graph_module_from_onnx(model)


def floats(*shape: int) -> torch.Tensor:
    """Seeded by its shape, float32, some of it outside of what eight bits hold here."""
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def case(body: str, example: torch.Tensor, **changes: Any) -> Case:
    inner = ", ".join(map(str, example.shape[1:]))
    return Case(module(body, inner, **changes), (example,), REWRITES, (DYNAMIC,))


@pytest.mark.parametrize("zero", [0, -128, 17])
def test_products_of_one_value_become_one_with_unsigned_bytes(zero: int) -> None:
    found = case(_PROJECTIONS, floats(3, 5, 16), zero=zero)
    assert found.counts["int8_products"] == 2
    assert found.num_calls(aten.addmm.default) == 1
    assert found.num_calls(decomposed.dequantize_per_channel.default) == 1
    assert found.num_calls(aten.matmul.default) == found.num_calls(aten.round.default) == 0
    rounding = next(
        node
        for node in found.graph.graph.nodes
        if node.target is decomposed.quantize_per_tensor.default
    )
    assert rounding.args[2:] == (zero + 128, 0, 255, torch.uint8)
    for batch in (1, 3, 8):
        found.check(floats(batch, 5, 16), max_rel_l2=MAX_REL_L2)


def test_a_value_may_be_read_in_floats_beside_its_product() -> None:
    found = case(_RESIDUAL, floats(3, 5, 16))
    assert found.counts["int8_products"] == found.num_calls(aten.mm.default) == 1
    assert found.num_calls(decomposed.quantize_per_tensor.default) == 1
    found.check(floats(2, 5, 16), max_rel_l2=MAX_REL_L2)


def test_convolutions_and_classifiers_behind_moves_stay_in_bytes() -> None:
    found = case(_IMAGES, floats(3, 3, 8, 8))
    assert found.counts["int8_products"] == 2
    assert found.num_calls(decomposed.dequantize_per_channel.default) == 2
    # The image, the pooled image, what the convolution gave, and that as rows.
    assert found.num_calls(decomposed.quantize_per_tensor.default) == 4
    for batch in (1, 3, 8):
        found.check(floats(batch, 3, 8, 8), max_rel_l2=MAX_REL_L2)


@pytest.mark.parametrize(
    "changes",
    [
        {"wa_z": np.full(16, 3, np.int8), "wb_z": np.full(8, 3, np.int8)},
        {
            "wa": np.ones((16, 16), np.uint8),
            "wa_z": np.zeros(16, np.uint8),
            "wb": np.ones((16, 8), np.uint8),
            "wb_z": np.zeros(8, np.uint8),
        },
    ],
    ids=["zero points of weights", "unsigned weights"],
)
def test_weights_that_the_kernels_do_not_take_stay_in_floats(changes: dict[str, Any]) -> None:
    found = case(_PROJECTIONS, floats(3, 5, 16), **changes)
    assert found.counts["int8_products"] == 0
    assert found.num_calls(aten.matmul.default) == 2
    found.check(floats(2, 5, 16), max_rel_l2=MAX_REL_L2)


def test_rows_of_nothing_stay_in_floats() -> None:
    nothing = {"wa": np.empty((0, 16), np.int8), "wb": np.empty((0, 8), np.int8)}
    found = case(_PROJECTIONS, floats(3, 0), **nothing)
    assert found.counts["int8_products"] == 0
    found.check(floats(2, 0))


def test_floats_have_the_names_that_they_had() -> None:
    assert "int8_products" in rewrites_for("cpu", Precision.INT8)
    assert "int8_products" not in rewrites_for("cuda") + rewrites_for("cpu")
