"""Models whose rows depend on each other are refused unless requests are kept apart."""

from pathlib import Path

import onnx
import pytest
from onnx import parser

from compiler_worker.model_checks.rows_check import check_rows
from compiler_worker.model_checks.served_master import ServedMaster
from services.contracts.errors import InvalidRecipeError
from services.contracts.model.recipe import Batching, Bucket, DimRange, Recipe
from tests.faults.judged import record_of

BUCKET = Bucket(dims={"batch": DimRange(min=1, opt=4, max=8)})
CENTRED = "axis = Constant <value_ints = [0]> () mean = ReduceMean (x, axis) y = Sub (x, mean)"
AMONG = "axis = Constant <value_ints = [0]> () order = Softmax <axis = 0> (x) y = Identity (order)"


def check(body: str, folder: Path, recipe: Recipe, bucket: Bucket = BUCKET, to: str = "") -> None:
    graph = f"g (float[batch, 4] x) => ({to or 'float[batch, 4] y'}) {{ {body} }}"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {graph}')
    onnx.save(model, folder / "model.onnx")
    path = folder / "model.onnx"
    record = record_of(model)
    check_rows(ServedMaster(path=path, record=record, recipe=recipe, buckets=(bucket,)))


@pytest.mark.parametrize("body", [CENTRED, AMONG])
def test_rows_that_depend_on_each_other_are_refused(body: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRecipeError, match=r"'y' differs by .*batch_dim: null"):
        check(body, tmp_path, Recipe())
    check(body, tmp_path, Recipe(batching=Batching(batch_dim=None)))


@pytest.mark.parametrize(
    ("body", "to", "found"),
    [
        ("z = RandomNormalLike (x) y = Add (x, z)", "", "the same request twice gives different"),
        (
            "z = RandomUniformLike <low = 0.0, high = 1e6> (x) y = Cast <to = 7> (z)",
            "int64[batch, 4] y",
            "the same request twice gives different answers: output 'y'",
        ),
        ("z = Sub (x, x) y = Div (z, z)", "", "output 'y' of drawn inputs is NaN or Inf every"),
    ],
)
def test_what_else_keeps_answers_from_being_compared_is_named(
    body: str, to: str, found: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRecipeError, match=found) as refused:
        check(body, tmp_path, Recipe(), to=to)
    assert "rows depend" not in str(refused.value)


def test_ids_of_rows_that_depend_on_each_other_are_refused(tmp_path: Path) -> None:
    """An output without rows keeps a replica from joining requests anyway."""
    check("y = ArgMax <axis = 0, keepdims = 0> (x)", tmp_path, Recipe(), to="int64[4] y")
    body = "n = Shape <end = 1> (x) whole = Cast <to = 7> (x) y = Add (whole, n)"
    with pytest.raises(InvalidRecipeError, match="'y' differs"):
        check(body, tmp_path, Recipe(), to="int64[batch, 4] y")


@pytest.mark.parametrize(
    "body",
    ["y = Softmax (x)", "l, h, s = DynamicQuantizeLinear (x) y = DequantizeLinear (l, h, s)"],
)
def test_rows_of_their_own_are_taken(body: str, tmp_path: Path) -> None:
    check(body, tmp_path, Recipe())


def test_a_bucket_of_one_row_is_not_asked(tmp_path: Path) -> None:
    check(CENTRED, tmp_path, Recipe(), Bucket(dims={"batch": DimRange(min=1, opt=1, max=1)}))
