"""A recipe that lets tensors be empty, against a model that may not compute such ones."""

from pathlib import Path

import onnx
import pytest
from onnx import parser

from compiler_worker.empty_check import check_empty
from services.contracts.errors import InvalidRecipeError
from services.contracts.manifest import MasterRecord
from services.contracts.recipe import Bucket, DimRange, Recipe
from services.contracts.tensors import TensorSpec

_GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[batch, n] x) => (float[batch] y) {{
  {body}
}}
"""
FIRST = "zero = Constant <value_int = 0> ()\n  y = Gather <axis = 1> (x, zero)"
SUM = "one = Constant <value_ints = [1]> ()\n  y = ReduceSum <keepdims = 0> (x, one)"
MASTER = MasterRecord(
    digest="a" * 64,
    files={},
    inputs=(TensorSpec(name="x", datatype="FP32", shape=("batch", "n")),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=("batch",)),),
    opset=20,
    num_parameters=0,
)


def _recipe(least: int) -> Recipe:
    dims = {"batch": DimRange(min=1, opt=2, max=4), "n": DimRange(min=least, opt=4, max=8)}
    return Recipe(buckets=(Bucket(dims=dims),))


def _saved(body: str, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(parser.parse_model(_GRAPH.format(body=body)), path)
    return path


def test_a_model_that_fails_on_empty_tensors_is_refused_with_the_size(tmp_path: Path) -> None:
    path = _saved(FIRST, tmp_path)
    check_empty(path, MASTER, _recipe(1))
    with pytest.raises(InvalidRecipeError, match="fails at {'batch': 1, 'n': 0}.*begin the bucket"):
        check_empty(path, MASTER, _recipe(0))


def test_a_model_that_computes_them_is_taken(tmp_path: Path) -> None:
    check_empty(_saved(SUM, tmp_path), MASTER, _recipe(0))
