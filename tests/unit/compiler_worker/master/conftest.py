"""Tiny ONNX models, made on the spot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


class MakeModel(Protocol):
    """Builds a model around nodes; input x and output y are float32 [N, 4] unless given."""

    def __call__(self, nodes: list[onnx.NodeProto], **parts: Any) -> onnx.ModelProto: ...


def tensor_info(name: str, shape: list[int | str | None] | None = None) -> onnx.ValueInfoProto:
    """A float32 value, [N, 4] unless a shape is given."""
    return helper.make_tensor_value_info(
        name, TensorProto.FLOAT, ["N", 4] if shape is None else shape
    )


@pytest.fixture
def make_model() -> MakeModel:
    def make(
        nodes: list[onnx.NodeProto],
        *,
        inputs: list[onnx.ValueInfoProto] | None = None,
        outputs: list[onnx.ValueInfoProto] | None = None,
        weights: dict[str, np.ndarray] | None = None,
        opset: int = 20,
        ir_version: int = 10,
        functions: list[onnx.FunctionProto] | None = None,
        domains: tuple[str, ...] = (),
    ) -> onnx.ModelProto:
        initializers = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
        graph = helper.make_graph(
            nodes,
            "test",
            [tensor_info("x")] if inputs is None else inputs,
            [tensor_info("y")] if outputs is None else outputs,
            initializers,
        )
        imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
        return helper.make_model(
            graph, opset_imports=imports, ir_version=ir_version, functions=functions or []
        )

    return make


@pytest.fixture
def linear(make_model: MakeModel) -> onnx.ModelProto:
    """Give y = leaky_relu(x @ w + b): w is large enough to be stored apart, b is not."""
    rng = np.random.default_rng(0)
    return make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
            helper.make_node("Add", ["h", "b"], ["s"], name="sum"),
            helper.make_node("LeakyRelu", ["s"], ["y"], name="act", alpha=0.25),
        ],
        inputs=[tensor_info("x", ["N", 32])],
        outputs=[tensor_info("y", ["N", 16])],
        weights={
            "w": rng.standard_normal((32, 16)).astype(np.float32),
            "b": rng.standard_normal(16).astype(np.float32),
        },
    )


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Write a model below tmp_path; `external=True` puts its weights into `w.data`."""

    def write(model: onnx.ModelProto, folder: str = "model", *, external: bool = False) -> Path:
        path = tmp_path / folder / "m.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        if external:
            onnx.save(
                copy, str(path), save_as_external_data=True, location="w.data", size_threshold=0
            )
        else:
            onnx.save(copy, str(path))
        return path

    return write
