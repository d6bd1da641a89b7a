"""Masters as torch wants them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

from compiler_worker.builders.graphs import export_dims, export_dynamic, fx_graph, traced_sizes
from compiler_worker.builders.typed_graphs import (
    check_ranges,
    interface_inputs,
    planned_graph,
    typed_graph,
)
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.precision.calibration import write_calibration
from services.contracts.errors import BuildError
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.default_buckets import dynamic_dims
from services.contracts.model.recipe import DimRange
from services.engines.torch_runtime.programs import ranges_of
from tests.conformance.tiny_model import draw_inputs, master_record, reference, tiny_model
from tests.unit.compiler_worker.builders.conftest import PlanMaker


def span(low: int, high: int) -> DimRange:
    return DimRange(min=low, opt=low, max=high)


@pytest.mark.parametrize(
    ("ranges", "sizes"),
    [
        ({"a": span(1, 8), "b": span(1, 16)}, {"a": 2, "b": 3}),
        ({"a": span(1, 2), "b": span(1, 2)}, {"a": 2, "b": 2}),
        ({"a": span(1, 1), "b": span(4, 9)}, {"a": 1, "b": 4}),
        ({"a": span(5, 5), "b": span(5, 9), "c": span(1, 9)}, {"a": 5, "b": 6, "c": 2}),
    ],
)
def test_traced_sizes_are_inside_and_different_where_possible(
    ranges: dict[str, DimRange], sizes: dict[str, int]
) -> None:
    assert traced_sizes(ranges) == sizes


def test_a_fixed_dimension_is_exported_static() -> None:
    dims = export_dims({"batch": span(4, 4), "sequence.length": span(1, 9)})
    assert list(dims) == ["sequence.length"]
    assert dims["sequence.length"].__name__ == "sequence_length"


def test_the_interface_is_read_from_the_file(master_path: Path) -> None:
    inputs = interface_inputs(master_path)
    assert inputs == master_record().inputs
    assert dynamic_dims(inputs) == ["batch", "sequence"]


def test_a_bucket_without_a_dimension_is_refused() -> None:
    with pytest.raises(BuildError, match="no bucket gives a range for dimension 'sequence'"):
        check_ranges(master_record().inputs, {"batch": span(1, 2)})


@pytest.mark.parametrize("ranges", [{}, {"batch": span(1, 8), "sequence": span(1, 64)}])
def test_one_exported_program_serves_all_shapes(
    master_path: Path, ranges: dict[str, DimRange]
) -> None:
    inputs = interface_inputs(master_path)
    program = export_dynamic(fx_graph(master_path, Precision.FP32), inputs, ranges)
    found = ranges_of(program, inputs)
    assert [(r.min, r.max) for r in found.values()] == [
        (r.min, r.max) for r in ranges.values()
    ] or not ranges
    module = program.module()
    for batch, sequence in ((1, 1), (8, 64), (3, 1), (1, 17)):
        arrays = draw_inputs(batch, sequence)
        outputs = module(*(torch.from_numpy(array) for array in arrays.values()))
        for output, wanted in zip(outputs, reference(tiny_model(), arrays).values(), strict=True):
            np.testing.assert_allclose(output.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_a_graph_that_bounds_a_dimension_says_so() -> None:
    class Positions(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.zeros(12))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (x + self.table[: x.shape[1]],)

    from services.contracts.kserve.tensor_spec import TensorSpec

    spec = TensorSpec(name="x", datatype="FP32", shape=("batch", "sequence"))
    program = export_dynamic(torch.fx.symbolic_trace(Positions()), (spec,), {})
    ranges = ranges_of(program, (spec,))
    assert (ranges["sequence"].min, ranges["sequence"].max) == (1, 12)
    assert (ranges["batch"].min, ranges["batch"].max) == (1, 2**31 - 1)


@pytest.mark.parametrize(
    ("precision", "narrow"),
    [(Precision.FP16, onnx.TensorProto.FLOAT16), (Precision.BF16, onnx.TensorProto.BFLOAT16)],
)
def test_a_typed_graph_keeps_its_interface(
    master_path: Path, precision: Precision, narrow: int
) -> None:
    graph = typed_graph(master_path, precision).graph
    assert {entry.type.tensor_type.elem_type for entry in graph.output} == {onnx.TensorProto.FLOAT}
    assert narrow in {tensor.data_type for tensor in graph.initializer}


def test_what_torch_decides_otherwise_for_no_rows_is_refused() -> None:
    """It takes `rows > 0` to be true of every size."""
    graph = """<ir_version: 10, opset_import: ["" : 20]> g (float[N] x) => (bool[1] y)
        { rows = Shape (x) zero = Constant <value_ints = [0]> () y = Greater (rows, zero) }"""
    module = graph_module_from_onnx(parser.parse_model(graph))
    inputs = (TensorSpec(name="x", datatype="FP32", shape=("N",)),)
    (found,) = module(torch.zeros(0))
    assert not found.item()
    export_dynamic(module, inputs, {"N": span(1, 8)})
    with pytest.raises(BuildError, match="something else than the graph at N=0; begin the bucket"):
        export_dynamic(module, inputs, {"N": DimRange(min=0, opt=1, max=8)})


def test_what_was_drawn_is_calibrated_with_after_each_third_row(
    make_plan: PlanMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = draw_inputs(16, 3)
    path = write_calibration(inputs, tmp_path)
    plan = make_plan(EngineKind.ONNXRUNTIME, "cpu-x86_64-v3", precision=Precision.INT8)
    drawn = [draw_inputs(2, length) for length in (5, 6)]
    calibrated = []

    def quantised(model: onnx.ModelProto, _: Precision, feeds: list[dict[str, Array]]) -> object:
        calibrated.extend(next(iter(feed.values())).shape for feed in feeds)
        return model

    monkeypatch.setattr("compiler_worker.precision.quantised.quantised_model", quantised)
    planned_graph(replace(plan, calibration_path=path, drawn=drawn))
    rows = [(1, 3)] * 3
    assert calibrated == [*rows, (2, 5), *rows, (2, 6), *rows, *rows, *rows, (1, 3)]
