"""Sizes that a recipe or the defaults let requests have, against models that may fail there."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import psutil
import pytest
from onnx import parser

from compiler_worker.model_checks.served_master import ServedMaster
from compiler_worker.model_checks.sizes_check import check_empty, check_largest, computed_sizes
from compiler_worker.references.models import OrtModel
from services.contracts.errors import InvalidRecipeError, ProofError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.default_buckets import default_buckets
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.input_values import InputValues
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, DimRange, Recipe

_GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[batch, n] x) => (float[batch] y) {{
  {body}
}}
"""
FIRST = "zero = Constant <value_int = 0> ()\n  y = Gather <axis = 1> (x, zero)"
# One weight for each of six places: an addition fails where a row is longer.
PLACES = """n = Shape <start = 1> (x)
  zero = Constant <value_ints = [0]> ()
  all = Constant <value = float[6] {1, 2, 3, 4, 5, 6}> ()
  some = Slice (all, zero, n)
  moved = Add (x, some)
  one = Constant <value_ints = [1]> ()
  y = ReduceSum <keepdims = 0> (moved, one)"""
SUM = "one = Constant <value_ints = [1]> ()\n  y = ReduceSum <keepdims = 0> (x, one)"
# The fifth place of each row.
FEWEST = "fifth = Constant <value_int = 4> ()\n  y = Gather <axis = 1> (x, fifth)"
NEVER = "far = Constant <value_int = 1000> ()\n  y = Gather <axis = 1> (x, far)"
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


def _served(path: Path, recipe: Recipe, *buckets: Bucket) -> ServedMaster:
    return ServedMaster(path=path, record=MASTER, recipe=recipe, buckets=buckets or recipe.buckets)


def _check_empty(path: Path, least: int) -> None:
    check_empty(_served(path, _recipe(least)))


def _saved(body: str, folder: Path, opset: int = 20) -> Path:
    path = folder / "model.onnx"
    model = parser.parse_model(_GRAPH.format(body=body))
    model.opset_import[0].version = opset
    onnx.save(model, path)
    return path


def test_a_model_that_fails_on_empty_tensors_is_refused_with_the_size(tmp_path: Path) -> None:
    path = _saved(FIRST, tmp_path)
    _check_empty(path, 1)
    with pytest.raises(InvalidRecipeError, match="fails at {'batch': 1, 'n': 0}.*begin the bucket"):
        _check_empty(path, 0)


def test_a_model_that_computes_them_is_taken(tmp_path: Path) -> None:
    _check_empty(_saved(SUM, tmp_path), 0)


def test_a_model_that_fails_at_its_largest_sizes_is_refused_with_them(tmp_path: Path) -> None:
    path, recipe = _saved(PLACES, tmp_path), _recipe(1)
    with pytest.raises(
        InvalidRecipeError, match="bucket batch4-n8: the model fails at {'batch': 1, 'n': 8}"
    ):
        check_largest(_served(path, recipe))


@pytest.mark.parametrize(
    ("body", "limits", "words"),
    [
        (PLACES, {"n": DimLimits(min=1, max=6)}, "6 by 7"),
        (FEWEST, {"n": DimLimits(min=5, max=128)}, "idx=4"),
        (SUM, {}, ""),
        (NEVER, {}, ""),
    ],
    ids=["largest", "smallest", "all", "none"],
)
def test_sizes_by_default_are_those_that_the_model_computes(
    body: str, limits: dict[str, DimLimits], words: str, tmp_path: Path
) -> None:
    path, (bucket,) = _saved(body, tmp_path), default_buckets(MASTER.inputs, "batch")
    found, why = computed_sizes(_served(path, Recipe(), bucket))
    assert found == limits
    assert words in why


def test_an_opset_that_onnxruntime_does_not_know_is_checked_too(tmp_path: Path) -> None:
    _check_empty(_saved(SUM, tmp_path, opset=28), 0)
    with pytest.raises(InvalidRecipeError, match=r"onnx\.reference run of the master failed"):
        _check_empty(_saved(FIRST, tmp_path, opset=28), 0)


def test_a_model_that_fails_at_any_size_is_left_to_its_proof(tmp_path: Path) -> None:
    path = _saved(NEVER, tmp_path)
    check_largest(_served(path, _recipe(1)))


def test_a_host_with_too_little_memory_leaves_it_to_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, recipe = _saved(PLACES, tmp_path), _recipe(1)
    plain_run = OrtModel.run

    def run(model: OrtModel, inputs: Mapping[str, Array]) -> dict[str, Array]:
        if inputs["x"].shape == (1, 8):
            raise ProofError("ONNX Runtime run of the master failed: std::bad_alloc")
        return plain_run(model, inputs)

    with monkeypatch.context() as patch:
        patch.setattr(OrtModel, "run", run)
        check_largest(_served(path, recipe))
    with monkeypatch.context() as patch:
        memory = psutil.virtual_memory()._replace(available=2 * path.stat().st_size - 2)
        patch.setattr(psutil, "virtual_memory", lambda: memory)
        check_largest(_served(path, recipe))
    with pytest.raises(InvalidRecipeError):
        check_largest(_served(path, recipe))


def test_sizes_are_looked_for_with_categories_that_its_encoder_knows(tmp_path: Path) -> None:
    hot = "hot = ai.onnx.ml.OneHotEncoder <cats_int64s = [7, 9], zeros = 0> (code)"
    axis = "minus = Constant <value_ints = [-1]> ()"
    body = f"{PLACES.replace('  y =', '  z =')} {axis} {hot}"
    body += " h = ReduceSum <keepdims = 0> (hot, minus) y = Add (z, h)"
    model = parser.parse_model(_GRAPH.format(body=body).replace("] x)", "] x, int64[batch] code)"))
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    onnx.save(model, tmp_path / "model.onnx")
    code = TensorSpec(name="code", datatype="INT64", shape=("batch",))
    known = {"code": InputValues(choices=((7, 9),))}
    master = MASTER.model_copy(update={"inputs": (*MASTER.inputs, code), "input_values": known})
    served = _served(tmp_path / "model.onnx", Recipe(), *_recipe(1).buckets)
    found, _ = computed_sizes(replace(served, record=master))
    assert found["n"].max == 6
