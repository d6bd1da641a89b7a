"""A recipe that speaks of another model is refused before anything is built."""

from typing import Any

import pytest

from compiler_worker.model_checks.recipe_check import check_recipe
from services.contracts.errors import InvalidRecipeError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.input_values import InputValues, IntegerSpan
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import InputRecipe, InputRole, Recipe
from tests.conformance.tiny_model import master_record

MASK = {"mask": {"role": "mask"}}


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"inputs": {"ids": {"high": 9}, **MASK}},
        {"inputs": MASK, "outputs": {"hidden": {"valid_where": "mask"}, "pooled": {}}},
        {"ranking": {"output": "pooled"}},
        {"inputs": {"ids": {"high": 9, "min": 0, "max": 8}}},
        {"precisions": ["int8", "fp8"], "calibration": {"path": "rows.npz"}},
        {"precisions": ["int8_weight_only"]},
        {"outputs": {"pooled": {"accept_blind": {"bf16": ["2 % off", "off by one"]}}}},
    ],
)
def test_what_fits_is_taken(recipe: dict[str, Any]) -> None:
    check_recipe(master_record(), Recipe.model_validate(recipe))


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ({"sampling": {"hash": ["id"]}}, r"sampling.hash: 'id' is not in the model, did you mean"),
        ({"inputs": {"msk": {"role": "mask"}}}, r"inputs: 'msk' .* expected one of ids, mask"),
        ({"outputs": {"pool": {}}}, r"outputs: 'pool' .* expected one of hidden, pooled"),
        (
            {"outputs": {"hidden": {"valid_where": "attention"}}},
            r"outputs.hidden.valid_where: 'attention' is not in the model",
        ),
        (
            {"outputs": {"hidden": {"valid_where": "mask"}}},
            r"'mask' is drawn as values, .* inputs: {mask: {role: mask}}",
        ),
        (
            {"inputs": MASK, "outputs": {"pooled": {"valid_where": "mask"}}},
            r"'mask' is \['batch', 'sequence'\], the leading dimensions of",
        ),
        ({"ranking": {"output": "scores"}}, r"ranking.output: 'scores' is not in the model"),
        ({"inputs": {"msk": {}}}, r"'msk' is not in the model, did you mean 'mask'\?; expected"),
        ({"ranking": {"output": "hidden"}}, r"expected an embedding \[batch, D\]"),
        ({"precisions": ["int8"]}, r"precision int8: .* calibration: {path: FILE}, where FILE"),
        (
            {"inputs": {"ids": {"low": 200, "high": 10}}},
            r"inputs.ids: expected low < high, got low 200 and high 10",
        ),
        (
            {"outputs": {"pooled": {"accept_blind": {"int8": ["2 percent off"]}}}},
            r"pooled.accept_blind.int8: unknown fault '2 percent off', did you mean '2 % off'\?;",
        ),
        ({"precisions": ["fp32", "fp8"]}, r"precision fp8: its scales come from real inputs"),
    ],
)
def test_what_does_not_fit_is_told_with_the_way_out(recipe: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRecipeError, match=told):
        check_recipe(master_record(), Recipe.model_validate(recipe))


def known(**values: InputValues) -> MasterRecord:
    """The tiny model, and what a graph says of its inputs."""
    return master_record().model_copy(update={"input_values": values})


ROWS = known(ids=InputValues(allowed=(IntegerSpan(min=0, max=59),), tables=("word",)))
COLUMNS = known(ids=InputValues(allowed=(IntegerSpan(min=0, max=9), IntegerSpan(min=0, max=99))))
FROM_ONE = known(ids=InputValues(allowed=(IntegerSpan(min=1, max=60),)))


@pytest.mark.parametrize(
    ("master", "ids"),
    [
        (ROWS, {"min": 0, "max": 59, "low": 5, "high": 60, "pad": 59}),
        (ROWS, {"min": 5, "max": 9, "pad": 5}),
        (COLUMNS, {"max": 99, "high": 10}),
        (FROM_ONE, {"pad": 1}),
        (known(ids=InputValues(allowed=(IntegerSpan(max=59),))), {"min": -7}),
        (known(ids=InputValues(drawn=(IntegerSpan(min=0, max=9),))), {"max": 30, "high": 30}),
    ],
)
def test_a_recipe_may_narrow_what_the_graph_takes(
    master: MasterRecord, ids: dict[str, Any]
) -> None:
    check_recipe(master, Recipe.model_validate({"inputs": {"ids": ids}}))


@pytest.mark.parametrize(
    ("master", "ids", "told"),
    [
        (ROWS, {"max": 60}, r"max is 60, but the model takes 0 to 59 \(rows of 'word'\): a rec"),
        (ROWS, {"min": -1}, "min is -1, but the model takes 0 to 59 .*may only narrow"),
        (ROWS, {"high": 61}, "largest value below high is 60, outside of min 0 and max 59"),
        (ROWS, {"low": -3}, "low is -3, outside of min 0 and max 59"),
        (ROWS, {"pad": 60}, "pad is 60, outside of min 0 and max 59"),
        (FROM_ONE, {}, "pad is 0, outside of min 1 and max 60"),
        (FROM_ONE, {"role": "mask", "pad": 1}, "a mask's 0 is 0, outside of min 1"),
        (COLUMNS, {"min": 10, "pad": 10}, "expected min <= max, got 10 and 9"),
        (COLUMNS, {"high": 11}, "largest value below high is 10, outside of min 0 and max 9"),
    ],
)
def test_what_a_table_does_not_have_is_refused(
    master: MasterRecord, ids: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidRecipeError, match=f"recipe: inputs.ids: .*{told}"):
        check_recipe(master, Recipe.model_validate({"inputs": {"ids": ids}}))


def test_a_mask_that_the_graph_shows_needs_no_word() -> None:
    recipe = Recipe.model_validate({"outputs": {"hidden": {"valid_where": "mask"}}})
    check_recipe(known(mask=InputValues(role=InputRole.MASK)), recipe)


STRINGS = MasterRecord(
    digest="d" * 64,
    files={},
    inputs=(TensorSpec(name="words", datatype="BYTES", shape=("batch",)),),
    outputs=(TensorSpec(name="label", datatype="BYTES", shape=("batch", 1)),),
    opset=20,
    num_parameters=0,
)


def test_strings_are_drawn_from_values() -> None:
    for recipe in ({}, {"inputs": {"words": {"values": ["a", ""]}}}):
        check_recipe(STRINGS, Recipe.model_validate(recipe))
    with pytest.raises(InvalidRecipeError, match="ids: values are for strings, .* takes INT64"):
        check_recipe(master_record(), Recipe(inputs={"ids": InputRecipe(values=("a",))}))


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        *(
            ({"inputs": {"words": {name: 1}}}, f"inputs.words: {name} is for numbers, .*never pad")
            for name in ("low", "high", "pad")
        ),
        ({"inputs": {"words": {"role": "mask"}}}, "inputs.words: role is for numbers"),
        ({"inputs": {"words": {"min": 0}}}, "inputs.words: min is for numbers"),
        ({"ranking": {"output": "label"}}, "ranking.output 'label': expected numbers"),
        (
            {"tasks": [{"metric": "top_k", "output": "label"}]},
            r"tasks.top_k.output 'label': expected numbers, .* strings \(BYTES\)",
        ),
        (
            {"precisions": ["int8"], "calibration": {"path": "rows.npz"}},
            r"precision int8: input 'words' is strings \(BYTES\), .* take int8 out",
        ),
    ],
)
def test_what_is_for_numbers_is_not_for_strings(recipe: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRecipeError, match=told):
        check_recipe(STRINGS, Recipe.model_validate(recipe))


def test_limits_are_for_integers() -> None:
    """A float has no row of a table, and a NaN would pass any comparison."""
    spec = TensorSpec(name="x", datatype="FP32", shape=("batch",))
    master = master_record().model_copy(update={"inputs": (spec,)})
    with pytest.raises(InvalidRecipeError, match=r"inputs\.x: min and max are for integers.*FP32"):
        check_recipe(master, Recipe.model_validate({"inputs": {"x": {"max": 1}}}))
