"""Ops of strings: ONNX's reference, ours where it has none, and ONNX Runtime agree."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from compiler_worker.references.models import EvaluatorModel, OrtModel
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array, check_array
from services.contracts.model.manifest import MasterRecord
from tests.conformance.strings import colours

STRINGS = np.array([["red", "nothing"], ["", "東京"]], dtype=object)
NUMBERS = np.array([[3, 4], [0, 3]])
PAIRS: dict[str, Any] = {"cats_strings": ["red", ""], "cats_int64s": [3, 4]}
_INTEGERS = TensorProto.INT64


def mapper(takes_strings: bool, **attributes: object) -> onnx.ModelProto:
    kinds = [TensorProto.STRING, _INTEGERS] if takes_strings else [_INTEGERS, TensorProto.STRING]
    node = helper.make_node(
        "CategoryMapper", ["words"], ["code"], domain="ai.onnx.ml", **PAIRS, **attributes
    )
    values = [
        helper.make_tensor_value_info(name, kind, ["batch", 2])
        for name, kind in zip(("words", "code"), kinds, strict=True)
    ]
    graph = helper.make_graph([node], "mapper", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    ("model", "x", "wanted"),
    [
        (mapper(True), STRINGS, [[3, -1], [4, -1]]),
        (mapper(True, default_int64=9), STRINGS, [[3, 9], [4, 9]]),
        (mapper(False), NUMBERS, [["red", ""], ["_Unused", "red"]]),
        (mapper(False, default_string=""), NUMBERS, [["red", ""], ["", "red"]]),
        (colours(), STRINGS, [[0, -1], [2, 3]]),
    ],
    ids=["to numbers", "by a default", "to strings", "by an empty one", "LabelEncoder"],
)
def test_the_references_agree_and_give_strings_in_one_form(
    tmp_path: Path, model: onnx.ModelProto, x: Array, wanted: list[list[object]]
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    names = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    specs = tuple(
        TensorSpec(name=n, datatype="BYTES" if kind == TensorProto.STRING else "X", shape=("b", 2))
        for n, kind in names.items()
    )
    master = MasterRecord(
        digest="d" * 64, files={}, inputs=(), outputs=specs, opset=20, num_parameters=0
    )
    for model_class in (EvaluatorModel, OrtModel):
        outputs = model_class.open(path, master).run({"words": x})
        assert outputs["code"].tolist() == wanted
        for spec in specs:
            if spec.datatype == "BYTES":
                check_array(spec, outputs[spec.name])
