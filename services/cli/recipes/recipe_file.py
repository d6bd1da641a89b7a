"""A recipe's file, as `smelt models add` and `smelt recipe check` read it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.contracts.errors import InvalidRecipeError
from services.contracts.model.recipe import Recipe

_PREFIX = "recipe: "


def read_recipe(path: Path) -> Recipe:
    """Read a recipe's file.

    Raises:
        InvalidRecipeError: it cannot be read, or is no recipe; with a line for each fault.
    """
    try:
        return Recipe.from_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise InvalidRecipeError(f"recipe {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRecipeError(f"recipe {path}: expected a YAML text file: {error}") from error


@contextmanager
def recipe_place(path: Path | None, recipe: Recipe | None) -> Iterator[None]:
    """Give file and line to what does not fit a model, where the recipe has a file.

    Raises:
        InvalidRecipeError: in place of the one from within.
    """
    try:
        yield
    except InvalidRecipeError as error:
        if path is None or recipe is None:
            raise
        from services.contracts.model.yaml_text import line_of

        words = str(error).removeprefix(_PREFIX)
        line = line_of(path.read_text(encoding="utf-8"), _place(words, recipe))
        raise InvalidRecipeError(f"{path}:{line}: {words}") from error


def _place(fault: str, recipe: Recipe) -> list[int | str]:
    """The keys of a fault that reads `KEY.KEY: 'NAME' ...` or `bucket LABEL: 'DIM' ...`."""
    key, _, rest = fault.partition(":")
    word, _, label = key.partition(" ")
    name = rest.partition("'")[2].partition("'")[0]
    labels = [bucket.label for bucket in recipe.buckets]
    if word == "bucket" and label in labels:
        return ["buckets", labels.index(label), "dims", name]
    return [*word.split("."), name]
