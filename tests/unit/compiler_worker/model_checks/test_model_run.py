"""What runs a model when it is added has a deadline, and answers as without one."""

from pathlib import Path

import onnx
import pytest
from onnx import parser

from compiler_worker.children.requests import CheckedFile, CheckRequest
from compiler_worker.model_checks.model_run import run_model
from compiler_worker.settings import CompilerSettings
from services.contracts.errors import InvalidModelError, InvalidRecipeError
from services.contracts.model.recipe import Batching, Recipe
from tests.faults.judged import record_of

ENDLESS = """
    turns = Constant <value_int = 4611686018427387904> ()
    goes_on = Constant <value = bool {1}> ()
    y = Loop (turns, goes_on, x) <body = turn (int64 i, bool on, float[N, 4] a)
        => (bool still, float[N, 4] b) { still = Identity (on) b = Neg (a) }>
"""
CENTRED = "axis = Constant <value_ints = [0]> () mean = ReduceMean (x, axis) y = Sub (x, mean)"


def asked(folder: Path, body: str, recipe: Recipe) -> CheckRequest:
    graph = f"g (float[N, 4] x) => (float[N, 4] y) {{ {body} }}"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {graph}')
    path = folder / "model.onnx"
    onnx.save(model, path)
    record = record_of(model)
    file = CheckedFile(path=path, master_path=path, master=record, classes={})
    return CheckRequest(
        master_path=path,
        master=record,
        recipe=recipe,
        limits={},
        unnamed=(),
        file=file,
        is_drawn=True,
    )


def test_a_loop_that_does_not_end_is_an_error_that_names_the_deadline(tmp_path: Path) -> None:
    settings = CompilerSettings(check_time_limit_s=3)
    with pytest.raises(InvalidModelError) as refused:
        run_model(asked(tmp_path, ENDLESS, Recipe()), settings)
    assert "at the sizes that it is to be served at: no result within 3 s" in str(refused.value)
    assert "raise SMELT_CHECK_TIME_LIMIT_S" in str(refused.value)


def test_with_a_deadline_the_same_is_found(tmp_path: Path) -> None:
    request = asked(tmp_path, CENTRED, Recipe())
    with_one, without = (
        run_model(request, CompilerSettings(check_time_limit_s=limit_s)) for limit_s in (300, 0)
    )
    assert with_one == without
    assert without.recipe.batching.batch_dim is None


def test_an_error_of_the_recipe_comes_back_as_one(tmp_path: Path) -> None:
    request = asked(tmp_path, CENTRED, Recipe(batching=Batching(batch_dim="N")))
    with pytest.raises(InvalidRecipeError, match="output 'y' differs"):
        run_model(request, CompilerSettings(check_time_limit_s=300))
