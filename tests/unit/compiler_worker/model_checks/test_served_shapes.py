"""What a model is served at whose recipe says nothing of rows or sizes."""

from pathlib import Path

import onnx
import pytest
from onnx import parser

from compiler_worker.model_checks.served_shapes import ServedShapes, served_shapes
from services.contracts.errors import InvalidRecipeError
from services.contracts.model.recipe import Batching, Bucket, DimRange, Recipe
from tests.faults.judged import record_of

ALONE = "y = Relu (x)"
CENTRED = "axis = Constant <value_ints = [0]> () mean = ReduceMean (x, axis) y = Sub (x, mean)"
# Each row adds up all that were before it: the first alone shows nothing.
RUNNING = "axis = Constant <value_int = 0> () y = CumSum (x, axis)"


def served(body: str, rows: str, folder: Path, recipe: Recipe | None = None) -> ServedShapes:
    graph = f"g (float[{rows}, 4] x) => (float[{rows}, 4] y) {{ {body} }}"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {graph}')
    onnx.save(model, folder / "model.onnx")
    unnamed = ["batch"] if recipe is None and rows == "batch" else []
    master = folder / "model.onnx", record_of(model)
    return served_shapes(master, recipe or Recipe(), {}, unnamed)


@pytest.mark.parametrize("rows", ["batch", "batch_size", "N"])
def test_axis_0_is_the_rows_whatever_it_is_called(rows: str, tmp_path: Path) -> None:
    found = served(ALONE, rows, tmp_path)
    assert found.recipe.batching.batch_dim == rows
    assert found.buckets[0].dims == {rows: DimRange(min=1, opt=4, max=8)}
    assert "are computed as if alone" in found.remarks[0]
    assert "batching: {batch_dim: null}" in found.remarks[0]


@pytest.mark.parametrize("body", [CENTRED, RUNNING])
@pytest.mark.parametrize("rows", ["batch", "N"])
def test_rows_that_depend_on_each_other_are_not_joined(
    body: str, rows: str, tmp_path: Path
) -> None:
    found = served(body, rows, tmp_path)
    assert found.recipe.batching.batch_dim is None
    assert "output 'y' differs" in found.remarks[0]


def test_what_the_owner_says_of_rows_is_held_to(tmp_path: Path) -> None:
    assert served(ALONE, "N", tmp_path, Recipe(batching=Batching(batch_dim=None))).remarks == ()
    with pytest.raises(InvalidRecipeError, match="rows depend on each other"):
        served(CENTRED, "N", tmp_path, Recipe(batching=Batching(batch_dim="N")))
    empty = Recipe(buckets=(Bucket(dims={"N": DimRange(min=0, opt=4, max=8)}),))
    assert served(ALONE, "N", tmp_path, empty).remarks == ()
