"""What a model is served at whose recipe says nothing of rows or sizes."""

from pathlib import Path

import onnx
import pytest
from onnx import parser

from compiler_worker.model_checks.served_master import ServedMaster
from compiler_worker.model_checks.served_shapes import served_shapes
from services.contracts.errors import InvalidRecipeError
from services.contracts.model.recipe import Batching, Bucket, DimRange, Recipe
from tests.faults.judged import record_of

ALONE = "y = Relu (x)"
CENTRED = "axis = Constant <value_ints = [0]> () mean = ReduceMean (x, axis) y = Sub (x, mean)"
# Each row adds up all that were before it: the first alone shows nothing.
RUNNING = "axis = Constant <value_int = 0> () y = CumSum (x, axis)"
# And here all that come after: the last alone shows nothing.
REVERSED = RUNNING.replace("CumSum", "CumSum <reverse = 1>")
SUM = "axis = Constant <value_ints = [0]> () y = ReduceSum <keepdims = 0> (x, axis)"


def served(
    body: str, rows: str, folder: Path, recipe: Recipe | None = None, to: str = ""
) -> ServedMaster:
    graph = f"g (float[{rows}, 4] x) => ({to or f'float[{rows}, 4] y'}) {{ {body} }}"
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


@pytest.mark.parametrize("body", [CENTRED, RUNNING, REVERSED])
@pytest.mark.parametrize("rows", ["batch", "N"])
def test_rows_that_depend_on_each_other_are_not_joined(
    body: str, rows: str, tmp_path: Path
) -> None:
    found = served(body, rows, tmp_path)
    assert found.recipe.batching.batch_dim is None
    assert "output 'y' differs" in found.remarks[0]


@pytest.mark.parametrize(("body", "is_joined"), [(ALONE, True), (CENTRED, False)])
@pytest.mark.parametrize(
    "spans",
    [
        [DimRange(min=2, opt=4, max=8)],
        [DimRange(min=1, opt=1, max=1), DimRange(min=2, opt=4, max=8)],
    ],
)
def test_requests_of_several_rows_and_of_several_buckets_are_compared_too(
    body: str, is_joined: bool, spans: list[DimRange], tmp_path: Path
) -> None:
    recipe = Recipe(buckets=tuple(Bucket(dims={"N": span}) for span in spans))
    found = served(body, "N", tmp_path, recipe)
    assert found.recipe.batching.batch_dim == ("N" if is_joined else None)
    assert ("are computed as if alone" in found.remarks[0]) is is_joined


@pytest.mark.parametrize(
    ("rows", "batch_dim"), [("batch", None), ("N", None), ("batch_size", "batch_size")]
)
def test_what_could_not_be_compared_is_joined_only_where_the_file_calls_it_a_batch(
    rows: str, batch_dim: str | None, tmp_path: Path
) -> None:
    found = served(SUM, rows, tmp_path, to="float[4] y")
    assert found.recipe.batching.batch_dim == batch_dim
    assert "could not be compared with lone ones ('y' [4] does not have" in found.remarks[0]
    assert ("requests are not joined" in found.remarks[0]) is (batch_dim is None)


def test_rows_of_which_no_two_requests_are_joined_are_not_said_to_be_compared(
    tmp_path: Path,
) -> None:
    recipe = Recipe(buckets=(Bucket(dims={"N": DimRange(min=2, opt=3, max=3)}),))
    found = served(CENTRED, "N", tmp_path, recipe)
    assert found.recipe.batching.batch_dim is None
    assert "no two requests are in 2..3 rows" in found.remarks[0]


def test_what_the_owner_says_of_rows_is_held_to(tmp_path: Path) -> None:
    assert served(ALONE, "N", tmp_path, Recipe(batching=Batching(batch_dim=None))).remarks == ()
    with pytest.raises(InvalidRecipeError, match="rows depend on each other"):
        served(CENTRED, "N", tmp_path, Recipe(batching=Batching(batch_dim="N")))
    empty = Recipe(buckets=(Bucket(dims={"N": DimRange(min=0, opt=4, max=8)}),))
    assert served(ALONE, "N", tmp_path, empty).remarks == ()
