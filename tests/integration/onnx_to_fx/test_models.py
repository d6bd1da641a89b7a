"""Real architectures: one graph that equals ONNX Runtime at shapes the export never saw."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from tests.integration.onnx_to_fx.conftest import Imported

# ResNet has no op whose form differs between the opsets.
CASES = [
    ("minilm", 23),
    pytest.param("minilm", 20, marks=pytest.mark.slow),
    pytest.param("vit", 23, marks=pytest.mark.slow),
    pytest.param("vit", 20, marks=pytest.mark.slow),
    pytest.param("resnet50", 23, marks=pytest.mark.slow),
]
Make = Callable[[str, int], Imported]


def assert_close(got: torch.Tensor, want: np.ndarray) -> None:
    """Equal within float32 rounding, relative to the largest element."""
    assert got.dtype == torch.float32
    scale = max(1.0, float(np.abs(want).max()))
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=5e-6 * scale)


@pytest.mark.parametrize(("name", "opset"), CASES)
def test_equals_onnxruntime_at_other_shapes(imported: Make, name: str, opset: int) -> None:
    case = imported(name, opset)
    for inputs, want in zip(case.source.inputs, case.answers, strict=True):
        (got,) = case.module(*inputs)
        assert_close(got, want)


@pytest.mark.parametrize(("name", "opset"), CASES)
def test_exports_with_dynamic_dims(imported: Make, name: str, opset: int) -> None:
    case = imported(name, opset)
    with warnings.catch_warnings():
        # torch's own deprecations inside export are not ours to mend.
        warnings.simplefilter("ignore")
        program = torch.export.export(
            case.module, case.source.example, dynamic_shapes=case.source.dynamic
        )
    module = program.module()
    for inputs, want in zip(case.source.inputs, case.answers, strict=True):
        (got,) = module(*inputs)
        assert_close(got, want)


@pytest.mark.parametrize(("name", "opset"), CASES)
def test_compiles_without_graph_break(imported: Make, name: str, opset: int) -> None:
    case = imported(name, opset)
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(case.module, fullgraph=True, backend="eager", dynamic=True)
        for inputs, want in zip(case.source.inputs, case.answers, strict=True):
            (got,) = compiled(*inputs)
            assert_close(got, want)


def test_float64_import_is_the_reference_of_the_source(imported: Make) -> None:
    case = imported("minilm", 23)
    inputs = case.source.inputs[2]
    (got,) = graph_module_from_onnx(case.onnx_model, float_dtype=torch.float64)(*inputs)
    want = case.source.module.double()(*inputs)
    case.source.module.float()
    assert got.dtype == torch.float64
    # What is left are the master's own float32 constants.
    torch.testing.assert_close(got, want.detach(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["minilm", pytest.param("vit", marks=pytest.mark.slow)])
def test_float16_import_is_close_and_stays_float16(imported: Make, name: str) -> None:
    case = imported(name, 23)
    module = graph_module_from_onnx(case.onnx_model, float_dtype=torch.float16)
    for inputs, want in zip(case.source.inputs, case.answers, strict=True):
        (got,) = module(*(x.half() if x.is_floating_point() else x for x in inputs))
        assert got.dtype == torch.float16
        np.testing.assert_allclose(got.float().numpy(), want, rtol=0, atol=5e-3)


@pytest.mark.parametrize(("name", "opset"), CASES)
def test_nothing_stays_behind_when_the_module_moves(imported: Make, name: str, opset: int) -> None:
    case = imported(name, opset)
    # Tensors of two devices do not mix, and "meta" is a device that is everywhere.
    module = copy.deepcopy(case.module).to("meta")
    for inputs, want in zip(case.source.inputs, case.answers, strict=True):
        (got,) = module(*(x.to("meta") for x in inputs))
        assert got.device.type == "meta"
        assert got.shape == want.shape


@pytest.mark.parametrize("opset", [23, pytest.param(20, marks=pytest.mark.slow)])
def test_moving_the_module_is_importing_with_that_type(imported: Make, opset: int) -> None:
    case = imported("minilm", opset)
    inputs = case.source.inputs[2]
    (moved,) = graph_module_from_onnx(case.onnx_model).double()(*inputs)
    (asked,) = graph_module_from_onnx(case.onnx_model, float_dtype=torch.float64)(*inputs)
    assert moved.dtype == torch.float64
    torch.testing.assert_close(moved, asked, rtol=0, atol=0)
