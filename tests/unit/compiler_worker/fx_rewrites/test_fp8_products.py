"""Products of values in E4M3, in a graph of bfloat16: given to fp8 kernels, and left alone."""

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper, parser
from torch.export import Dim

from compiler_worker.fx_rewrites.names import NAMES, rewrites_for
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.precision.typed import typed_model
from services.contracts.hardware.kinds import Precision
from tests.unit.compiler_worker.fx_rewrites.rewritten import Case

aten = torch.ops.aten
SCALED_MM = aten._scaled_mm.default  # noqa: SLF001 - an op of torch
REWRITES = ("repeated", "casts", "fp8_products")
# bfloat16, of a sum that is rounded before its bias is added, and after.
MAX_REL_L2 = 8e-3
_HEAD = """
<ir_version: 10, opset_import: ["" : 21]>
rounded (float[batch, positions, 32] x) => (float[batch, positions, outputs] y)
<float s = {0.02}>
{
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  wa_d = DequantizeLinear <axis = 1> (wa, wa_s)
  wb_d = DequantizeLinear <axis = 1> (wb, wb_s)
"""
PROJECTIONS = """
  a = MatMul (d, wa_d)
  b = MatMul (d, wb_d)
  a_sum = Add (a, a_bias)
  b_sum = Add (b_bias, b)
  y = Concat <axis = -1> (a_sum, b_sum)
}
"""
RESIDUAL = """
  product = MatMul (d, wa_d)
  y = Add (product, d)
}
"""


def case(
    body: str,
    num_outputs: int = 32,
    precision: Precision = Precision.BF16,
    *,
    is_dynamic: bool = False,
) -> Case:
    """A graph with two weights [32, num_outputs], their scales drawn."""
    rng = np.random.default_rng(5)
    arrays = {
        name: rng.standard_normal(num_outputs).astype(np.float32) for name in ("a_bias", "b_bias")
    }
    eights = {"z": np.zeros(())}
    for name in ("wa", "wb"):
        eights[name] = 100 * rng.standard_normal((32, num_outputs))
        arrays[f"{name}_s"] = rng.uniform(0.001, 0.01, num_outputs).astype(np.float32)
    model: onnx.ModelProto = parser.parse_model(_HEAD + body)
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items())
    for name, values in eights.items():
        raw = values.astype(ml_dtypes.float8_e4m3fn).tobytes()
        dtype = onnx.TensorProto.FLOAT8E4M3FN
        model.graph.initializer.append(helper.make_tensor(name, dtype, values.shape, raw, raw=True))
    module = graph_module_from_onnx(typed_model(model, precision))
    dynamic = ({0: Dim("batch", min=1, max=8)},) if is_dynamic else None
    return Case(module, (rows(3, 5),), REWRITES, dynamic)


def rows(batch: int, positions: int) -> torch.Tensor:
    """Seeded by its shape; some lie beyond what E4M3 holds at this scale."""
    generator = torch.Generator().manual_seed(batch)
    return 4 * torch.randn(batch, positions, 32, generator=generator)


def test_products_of_one_value_become_one_call() -> None:
    found = case(PROJECTIONS)
    assert found.counts["fp8_products"] == 2
    assert found.num_calls(SCALED_MM) == 1
    assert found.num_calls(aten.matmul.default) == found.num_calls(aten.add.Tensor) == 0
    assert found.num_calls(aten.round.default) == 0, "torch's cast rounds"
    found.check(rows(3, 5), max_rel_l2=MAX_REL_L2)


def test_a_value_may_be_read_in_floats_beside_its_product() -> None:
    found = case(RESIDUAL)
    assert found.counts["fp8_products"] == found.num_calls(SCALED_MM) == 1
    found.check(rows(3, 5), max_rel_l2=MAX_REL_L2)


@pytest.mark.parametrize(
    ("num_outputs", "precision", "is_dynamic"),
    [
        pytest.param(24, Precision.BF16, False, id="a size that the kernels do not take"),
        pytest.param(32, Precision.FP16, False, id="another type than they write"),
        pytest.param(32, Precision.BF16, True, id="any number of rows"),
    ],
)
def test_other_products_stay_in_floats(
    num_outputs: int, precision: Precision, is_dynamic: bool
) -> None:
    found = case(PROJECTIONS, num_outputs, precision, is_dynamic=is_dynamic)
    assert found.counts["fp8_products"] == found.num_calls(SCALED_MM) == 0
    assert found.num_calls(aten.matmul.default) == 2


def test_it_is_for_fp8_on_cuda_alone() -> None:
    assert "fp8_products" in rewrites_for("cuda", Precision.FP8)
    others = {*rewrites_for("cuda", Precision.FP16), *rewrites_for("cpu", Precision.FP8)}
    assert set(NAMES) - others == {"fp8_products", "int8_products"}
