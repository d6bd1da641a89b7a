"""A recipe's file, as `smelt models add` and `smelt recipe check` read it."""

from pathlib import Path

from services.contracts.errors import InvalidRecipeError
from services.contracts.model.recipe import Recipe


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
