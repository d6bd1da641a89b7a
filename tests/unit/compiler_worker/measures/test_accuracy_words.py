"""A recipe's word for accuracy, with its numbers."""

from pathlib import Path

from compiler_worker.measures.accuracy_words import accuracy_words, distances
from compiler_worker.measures.default_tolerances import DEFAULT_TOLERANCES
from services.contracts.hardware.kinds import Precision
from services.contracts.model.precision_choice import Accuracy
from services.contracts.model.recipe import RankingTask, Recipe, Tolerance
from services.contracts.model.task_recipe import TopKTask

OWN = Tolerance(rel_l2=3e-3, max_abs=4e-3, cosine_distance=5e-6)


def test_each_precision_keeps_its_own_distances() -> None:
    word, *lines = accuracy_words(Recipe(), (Precision.FP32, Precision.BF16))
    assert word == "accuracy: close"
    assert [line.removesuffix(" from the original (by default)") for line in lines] == [
        "fp32: at most relative L2 1e-05, largest error 1e-05, 1 - cosine 1e-09",
        "bf16: at most relative L2 0.02, largest error 0.04, 1 - cosine 0.0002",
    ]


def test_the_recipes_numbers_replace_them() -> None:
    recipe = Recipe(tolerances={Precision.BF16: OWN})
    _, line = accuracy_words(recipe, (Precision.BF16,))
    assert line.startswith("bf16: at most relative L2 0.003, largest error 0.004, 1 - cosine 5e-06")
    assert line.endswith("(by the recipe)")


def test_what_compares_the_order_is_named() -> None:
    tasks = (TopKTask(metric="top_k", output="y"),)
    recipe = Recipe(accuracy="ranking", ranking=RankingTask(output="e"), tasks=tasks)
    (line,) = accuracy_words(recipe, ())
    assert line == "accuracy: ranking; engines also pass top-k, ranking of 'e'"


def test_no_word_loosens_a_bound() -> None:
    ranking = RankingTask(output="e")
    for word in Accuracy:
        recipe = Recipe(accuracy=word, ranking=ranking)
        for precision, default in DEFAULT_TOLERANCES.items():
            assert distances(precision, recipe).items() <= default.model_dump().items()


def test_the_page_for_owners_has_the_same_numbers() -> None:
    page = Path(__file__).parents[4] / "docs/how-to/models/write-a-recipe.md"
    rows = [line.strip("| ").split(" | ") for line in page.read_text().splitlines()]
    stated = {
        row[0]: [float(cell) for cell in row[1:]] for row in rows if row[0] in list(Precision)
    }
    assert set(stated) >= {"fp32", "fp16", "bf16", "int8"}
    for precision, numbers in stated.items():
        assert numbers == list(distances(Precision(precision), Recipe()).values())
