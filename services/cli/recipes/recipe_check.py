"""`smelt recipe check`: a recipe's file read as `smelt models add` reads it."""

from pathlib import Path
from typing import TYPE_CHECKING

from services.cli.output.show import show
from services.cli.recipes.recipe_file import read_recipe, recipe_place
from services.cli.settings import CliSettings
from services.contracts.model.recipe import Recipe

if TYPE_CHECKING:
    from services.cli.recipes.recipe_model import RecipeModel


def run_recipe_check(settings: CliSettings, path: Path, model: str) -> None:
    """Check a recipe, and whether it fits a model where one is named.

    Args:
        settings: where the store is.
        path: of the recipe.
        model: name in the store, or a source; "" checks the recipe alone.

    Raises:
        InvalidRecipeError: with a line for each fault: file, line, key, value, expectation.
        NotFoundError: the store has no such model.
        InvalidModelError: the model's source cannot be opened.
    """
    recipe = read_recipe(path)
    fits = ""
    if model:
        from services.cli.output.progress import Steps
        from services.cli.recipes.recipe_model import find_recipe_model

        with recipe_place(path, recipe):
            found = find_recipe_model(settings, model, Steps(), recipe, path.parent)
            check_against(path, recipe, found)
        fits = f", and fits {found.title}"
    document = {"path": str(path), "model": model, "recipe": recipe.model_dump(mode="json")}
    check = f"its names are not checked; against a model: smelt recipe check {path} --model MODEL"
    text = [f"{path} is a valid recipe{fits}", "" if model else check]
    show(document, text)


def check_against(path: Path, recipe: Recipe, model: "RecipeModel") -> None:
    """Check a recipe against a model: names, sizes, values, the calibration set.

    Args:
        path: of the recipe, for messages and as the base of its own paths.
        recipe: as read from there.
        model: that it is for.

    Raises:
        InvalidRecipeError: with the key.
    """
    from compiler_worker.model_checks.recipe_check import check_recipe
    from compiler_worker.plans.build_keys import buckets_of, check_dims
    from compiler_worker.precision.calibration import read_calibration
    from services.contracts.model.default_buckets import dynamic_dims
    from services.contracts.model.value_limits import limits_of

    check_dims(recipe, dynamic_dims(model.master.inputs))
    check_recipe(model.master, recipe)
    buckets_of(model.master, recipe, model.dim_limits)
    if recipe.calibration is not None and recipe.calibration.path:
        rows = path.parent / recipe.calibration.path
        read_calibration(rows, model.master.inputs, limits_of(model.master, recipe))
