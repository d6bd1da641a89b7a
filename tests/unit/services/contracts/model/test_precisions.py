"""What `auto` resolves to, for a generation, a word for accuracy and calibration samples."""

import pytest

from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import Precision
from services.contracts.model.precision_choice import AUTO, Accuracy
from services.contracts.model.precisions import admitted_precisions, is_tried, precisions_on
from services.contracts.model.recipe import RankingTask, Recipe

V3, AMX, SM80 = "cpu-x86_64-v3", "cpu-x86_64-amx", "cuda-sm80"
TABLE = [
    (V3, Accuracy.CLOSE, False, ["fp32"]),
    (V3, Accuracy.CLOSE, True, ["fp32"]),
    ("cpu-x86_64-avx512_vnni", Accuracy.CLOSE, True, ["fp32", "int8"]),
    ("cpu-x86_64-avx512_bf16", Accuracy.CLOSE, False, ["fp32", "bf16"]),
    (AMX, Accuracy.EXACT, True, ["fp32"]),
    (AMX, Accuracy.CLOSE, False, ["fp32", "bf16"]),
    (AMX, Accuracy.CLOSE, True, ["fp32", "bf16", "int8"]),
    (AMX, Accuracy.RANKING, False, ["fp32", "bf16"]),
    (AMX, Accuracy.RANKING, True, ["fp32", "bf16", "int8"]),
    ("cpu-aarch64-generic", Accuracy.CLOSE, True, ["fp32"]),
    ("cuda-sm75", Accuracy.CLOSE, False, ["fp32", "fp16"]),
    (SM80, Accuracy.EXACT, True, ["fp32"]),
    (SM80, Accuracy.CLOSE, False, ["fp32", "fp16", "bf16"]),
    (SM80, Accuracy.CLOSE, True, ["fp32", "fp16", "bf16", "int8"]),
]


def saying(accuracy: Accuracy) -> Recipe:
    ranking = RankingTask(output="y") if accuracy is Accuracy.RANKING else None
    return Recipe(accuracy=accuracy, ranking=ranking)


def test_auto_tries_all_but_fp32_and_a_list_asks() -> None:
    listed = Recipe(precisions=(Precision.BF16,))
    assert is_tried(Recipe(), Precision.BF16)
    assert not is_tried(Recipe(), Precision.FP32)
    assert not is_tried(listed, Precision.BF16)


@pytest.mark.parametrize(("generation", "accuracy", "has_calibration", "wanted"), TABLE)
def test_what_auto_builds(
    generation: str, accuracy: Accuracy, has_calibration: bool, wanted: list[str]
) -> None:
    recipe = saying(accuracy)
    found = precisions_on(Generation.parse(generation), recipe, has_calibration=has_calibration)
    assert [each.value for each, reason in found.items() if not reason] == wanted
    # What is built there is what a replica there may serve with.
    admitted = admitted_precisions(recipe, has_calibration=has_calibration)
    assert {Precision(each) for each in wanted} <= set(admitted)


@pytest.mark.parametrize(
    ("recipe", "has_calibration", "wanted"),
    [
        (saying(Accuracy.EXACT), True, ["fp32"]),
        (saying(Accuracy.CLOSE), False, ["fp32", "bf16", "fp16"]),
        (saying(Accuracy.CLOSE), True, ["fp32", "bf16", "int8", "fp16"]),
        (Recipe(precisions=("fp8", "fp32")), False, ["fp8", "fp32"]),
    ],
)
def test_what_a_recipe_admits_anywhere(
    recipe: Recipe, has_calibration: bool, wanted: list[str]
) -> None:
    found = admitted_precisions(recipe, has_calibration=has_calibration)
    assert [each.value for each in found] == wanted


def test_each_that_is_not_built_has_its_reason() -> None:
    found = precisions_on(Generation.parse(V3), Recipe(), has_calibration=False)
    assert found[Precision.BF16].startswith("cpu-x86_64-v3 has no bf16 instructions")
    found = precisions_on(Generation.parse(AMX), Recipe(), has_calibration=False)
    # Also true of samples that were given and refused.
    assert "no calibration set; its recipe may name one" in found[Precision.INT8]
    exact = precisions_on(Generation.parse(AMX), saying(Accuracy.EXACT), has_calibration=True)
    assert exact[Precision.BF16] == exact[Precision.INT8] == "the recipe says accuracy: exact"


def test_a_list_is_built_as_it_stands() -> None:
    recipe = Recipe(precisions=(Precision.BF16, Precision.INT8_WEIGHT_ONLY))
    found = precisions_on(Generation.parse(V3), recipe, has_calibration=False)
    assert found == {Precision.BF16: "", Precision.INT8_WEIGHT_ONLY: ""}


def test_records_keep_what_they_named() -> None:
    older = Recipe(precisions=(Precision.FP32,))
    assert b"accuracy" not in older.canonical_json()
    assert Recipe.from_json(older.canonical_json()).precisions == (Precision.FP32,)
    assert Recipe.from_json(Recipe().canonical_json()).precisions == AUTO
