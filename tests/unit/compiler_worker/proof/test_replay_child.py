"""What a sample is compared with when it is run again."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from compiler_worker.children.requests import ProofRequest, ReplayRequest
from compiler_worker.proof.replay_child import wanted_outputs
from compiler_worker.references.models import EvaluatorModel, OrtModel
from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import MasterRecord

# ONNX says that a number becomes text, and not of how many digits.
INPUTS = {"x": np.array([0.60299462], np.float32)}


@pytest.mark.parametrize(
    ("kind", "model_class"),
    [(EngineKind.ONNXRUNTIME, EvaluatorModel), (EngineKind.OPENVINO, OrtModel)],
)
def test_an_engine_is_never_compared_with_its_own_library(
    tmp_path: Path, kind: EngineKind, model_class: type[EvaluatorModel | OrtModel]
) -> None:
    path = tmp_path / "model.onnx"
    values = [
        helper.make_tensor_value_info(name, kind_of, ["n"])
        for name, kind_of in (("x", TensorProto.FLOAT), ("y", TensorProto.STRING))
    ]
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)
    graph = helper.make_graph([cast], "text", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    specs = [
        TensorSpec(name=name, datatype=datatype, shape=("n",))
        for name, datatype in (("x", "FP32"), ("y", "BYTES"))
    ]
    master = MasterRecord(
        digest="d" * 64,
        files={},
        inputs=(specs[0],),
        outputs=(specs[1],),
        opset=20,
        num_parameters=0,
    )
    proof = ProofRequest.model_construct(
        manifest=SimpleNamespace(key=SimpleNamespace(kind=kind)),
        master=master,
        master_path=path,
        cache_dir=tmp_path,
        num_threads=1,
    )
    request = ReplayRequest.model_construct(proof=proof, failed=None, arrays_path=None)
    wanted = wanted_outputs(request, INPUTS)
    assert wanted["y"].tolist() == model_class.open(path, master).run(INPUTS)["y"].tolist()
    others = {EvaluatorModel, OrtModel} - {model_class}
    assert wanted["y"].tolist() != others.pop().open(path, master).run(INPUTS)["y"].tolist()
