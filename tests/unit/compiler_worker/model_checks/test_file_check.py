"""Masters that compute something else than the file that they were made of."""

import weakref
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

from compiler_worker.model_checks.file_check import check_file
from compiler_worker.model_checks.served_master import ServedMaster
from compiler_worker.references.models import OrtModel
from services.contracts.errors import InvalidModelError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, DimRange, Recipe

GRAPH = """<ir_version: 10, opset_import: ["" : 20]>
g (float[batch, 8] x) => (float[batch, 8] y, int64[batch] best) {
    y = Softmax (x)  best = ArgMax <axis = 1, keepdims = 0> (y) }"""
MASTER = MasterRecord(
    digest="a" * 64,
    files={},
    inputs=(TensorSpec(name="x", datatype="FP32", shape=("batch", 8)),),
    outputs=(
        TensorSpec(name="y", datatype="FP32", shape=("batch", 8)),
        TensorSpec(name="best", datatype="INT64", shape=("batch",)),
    ),
    opset=20,
    num_parameters=0,
)
BUCKET = Bucket(dims={"batch": DimRange(min=1, opt=8, max=8)})


def served(path: Path) -> ServedMaster:
    return ServedMaster(path=path, record=MASTER, recipe=Recipe(), buckets=(BUCKET,))


def checked(folder: Path, text: str) -> None:
    """The master of another text beside the file."""
    path, master_path = folder / "given.onnx", folder / "model.onnx"
    onnx.save(parser.parse_model(GRAPH), path)
    onnx.save(parser.parse_model(text), master_path)
    check_file(path, served(master_path))


def test_the_same_graph_is_taken(tmp_path: Path) -> None:
    checked(tmp_path, GRAPH)


@pytest.mark.parametrize(
    ("right", "wrong", "output"),
    [("Softmax (x)", "Softmax <axis = 0> (x)", "y"), ("ArgMax", "ArgMin", "best")],
)
def test_what_a_pass_changed_is_refused(
    right: str, wrong: str, output: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidModelError, match=f"computes something else: output '{output}' at"):
        checked(tmp_path, GRAPH.replace(right, wrong))


def test_a_file_that_onnxruntime_does_not_run_is_left_to_the_proof(tmp_path: Path) -> None:
    checked(tmp_path, GRAPH.replace('"" : 20', '"" : 99'))


def test_a_large_model_is_in_memory_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[OrtModel]] = []
    original = OrtModel.open

    def watched(path: Path, master: MasterRecord, **options: Any) -> OrtModel:
        assert not any(known() for known in opened)
        model = original(path, master, **options)
        opened.append(weakref.ref(model))
        return model

    monkeypatch.setattr(OrtModel, "open", watched)
    checked(tmp_path, GRAPH)
    assert len(opened) == 2


MAPS = """<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 1]>
g (float[batch, 8] x) => (seq(map(int64, float[])) y, int64[batch] best) {
    s = Softmax (x)  best = ArgMax <axis = 1, keepdims = 0> (s)
    y = ai.onnx.ml.ZipMap <classlabels_int64s = [9, 1, 2, 3, 4, 5, 6, 7]> (s) }"""


def test_maps_are_compared_with_the_table_in_the_order_of_its_columns(tmp_path: Path) -> None:
    path, master_path = tmp_path / "given.onnx", tmp_path / "model.onnx"
    onnx.save(parser.parse_model(MAPS), path)
    onnx.save(parser.parse_model(GRAPH), master_path)
    own = tuple("91234567")
    check_file(path, served(master_path), {"y": own})
    with pytest.raises(InvalidModelError, match="computes something else: output 'y' at"):
        check_file(path, served(master_path), {"y": tuple(sorted(own))})
