"""Outputs that nothing drawn changes are named when a model is added."""

from pathlib import Path

import onnx
import pytest
from onnx import parser

from compiler_worker.model_checks.served_master import ServedMaster
from compiler_worker.model_checks.varied_check import check_varied
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, Recipe
from tests.faults.judged import record_of

BUCKET = Bucket(dims={"N": DimRange(min=1, opt=4, max=8)})


def words(folder: Path, body: str, outputs: str, recipe: Recipe) -> list[str]:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[N, 3] x) '
        f"=> ({outputs}) <float far = {{900}}, int64[1] last = {{1}}> {{ {body} }}"
    )
    onnx.save(model, folder / "m.onnx")
    path = folder / "m.onnx"
    record = record_of(model)
    served = ServedMaster(path=path, record=record, recipe=recipe, buckets=(BUCKET,))
    return [*check_varied(served)]


FAR = "f = Greater (x, far) n = Cast <to = 1> (f) y = ReduceSum <keepdims = 0> (n, last)"
Y = "float[N] y"


@pytest.mark.parametrize(
    ("body", "outputs", "found"),
    [
        (FAR, Y, ["output 'y' is the same in 8 runs of drawn inputs, so every engine would be"]),
        (f"{FAR} z = Neg (x)", f"{Y}, float[N, 3] z", ["output 'y' is the same", "show little"]),
        ("y = ReduceSum <keepdims = 0> (x, last)", Y, []),
    ],
    ids=["all", "one of two", "none"],
)
def test_outputs_that_nothing_changes_are_named(
    body: str, outputs: str, found: list[str], tmp_path: Path
) -> None:
    said = words(tmp_path, body, outputs, Recipe())
    assert len(said) == bool(found)
    assert all(each in said[0] for each in found)
    assert all("a range (inputs: {x: {low: ..., high: ...}})" in each for each in said)


@pytest.mark.parametrize(
    ("accepted", "then"),
    [
        ({"fp32": ["mean only"]}, "so every engine but those in fp32 would be refused: "),
        (["mean only"], "so proofs show little of it: "),
        ({"fp32": ["2 % off"]}, "so every engine would be refused: "),
    ],
    ids=["in one precision", "in all", "another fault"],
)
def test_what_the_recipe_accepts_refuses_no_engine(
    accepted: object, then: str, tmp_path: Path
) -> None:
    recipe = Recipe.model_validate({"outputs": {"y": {"accept_blind": accepted}}})
    (said,) = words(tmp_path, FAR, Y, recipe)
    assert then in said


def test_a_range_in_the_recipe_has_them_vary(tmp_path: Path) -> None:
    own = Recipe(inputs={"x": InputRecipe(low=800, high=1000)})
    assert words(tmp_path, FAR, Y, own) == []


def test_what_onnxruntime_does_not_run_is_left_to_the_proof(tmp_path: Path) -> None:
    assert words(tmp_path, "y = Unknown (x)", Y, Recipe()) == []
