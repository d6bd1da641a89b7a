"""The check that finds graphs which mean something else than the module."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from compiler_worker.master.equality import check_equal, other_sizes, resized_inputs
from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel
from services.contracts.errors import InvalidModelError


@pytest.mark.parametrize(
    ("traced", "limits", "expected"),
    [
        ({"a": 2, "b": 3}, {"a": (1, 9), "b": (1, 9)}, {"a": 3, "b": 4}),
        ({"a": 2, "b": 3}, {"a": (1, 2), "b": (1, 3)}, {"a": 1, "b": 2}),
        ({"a": 3, "b": 2}, {"a": (3, 4), "b": (2, 5)}, {"a": 4, "b": 3}),
        ({}, {}, {}),
    ],
)
def test_other_sizes_differ_and_fit(
    traced: dict[str, int], limits: dict[str, tuple[int, int]], expected: dict[str, int]
) -> None:
    ranges = {name: DimLimits(min=low, max=high) for name, (low, high) in limits.items()}
    assert other_sizes(traced, ranges) == expected


def test_a_dynamic_dim_that_cannot_move() -> None:
    with pytest.raises(InvalidModelError, match="its limits allow only 4"):
        other_sizes({"a": 4}, {"a": DimLimits(min=4, max=4)})


class Mean(torch.nn.Module):
    """[B, T] -> [B]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1)


@pytest.fixture
def mean() -> PyTorchModel:
    return PyTorchModel(
        module=Mean(),
        example_inputs={"x": torch.arange(6.0).reshape(2, 3)},
        dynamic_dims={"x": {0: "batch", 1: "width"}},
        dim_limits={name: DimLimits(min=1, max=8) for name in ("batch", "width")},
        output_names=("y",),
    )


def test_resized_inputs_repeat_and_cut(mean: PyTorchModel) -> None:
    rows = resized_inputs(mean, {"batch": 3, "width": 2})["x"]
    assert rows.tolist() == [[0.0, 1.0], [3.0, 4.0], [0.0, 1.0]]


def graph(tmp_path: Path, nodes: list[onnx.NodeProto], **weights: float) -> Path:
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["batch", "width"]), ("y", ["batch"]))
    ]
    tensors = [helper.make_tensor(n, TensorProto.FLOAT, [], [v]) for n, v in weights.items()]
    tensors.append(helper.make_tensor("axes", TensorProto.INT64, [1], [1]))
    main = helper.make_graph(nodes, "g", infos[:1], infos[1:], tensors)
    model = helper.make_model(main, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(tmp_path / "m.onnx"))
    return tmp_path / "m.onnx"


def reduction(op_type: str, output: str = "y") -> onnx.NodeProto:
    return helper.make_node(op_type, ["x", "axes"], [output], keepdims=0)


def test_equal_graphs_pass(mean: PyTorchModel, tmp_path: Path) -> None:
    check_equal(mean, graph(tmp_path, [reduction("ReduceMean")]))


def test_a_size_taken_for_a_constant_is_found_at_the_other_shape(
    mean: PyTorchModel, tmp_path: Path
) -> None:
    # Right for width 3 alone, as an export that froze the traced size would be.
    nodes = [reduction("ReduceSum", "s"), helper.make_node("Div", ["s", "three"], ["y"])]
    with pytest.raises(InvalidModelError, match=r"output 'y' at .*'width': 4.*relative L2"):
        check_equal(mean, graph(tmp_path, nodes, three=3.0))


def test_nan_is_not_equal(mean: PyTorchModel, tmp_path: Path) -> None:
    nodes = [reduction("ReduceMean", "m"), helper.make_node("Mul", ["m", "bad"], ["y"])]
    with pytest.raises(InvalidModelError, match="distance nan"):
        check_equal(mean, graph(tmp_path, nodes, bad=float("nan")))


def test_another_shape_is_not_equal(mean: PyTorchModel, tmp_path: Path) -> None:
    path = graph(tmp_path, [helper.make_node("ReduceMean", ["x"], ["y"], keepdims=0)])
    with pytest.raises(InvalidModelError, match=r"float32 \[\] found, float32 \[2\] wanted"):
        check_equal(mean, path)


def test_a_graph_that_the_runtime_refuses(mean: PyTorchModel, tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match="ONNX Runtime refuses the graph"):
        check_equal(mean, graph(tmp_path, [helper.make_node("Nope", ["x"], ["y"])]))
