"""`smelt recipe schema`: the recipe's JSON schema, with what the docstrings say of each field."""

import json
from typing import Any

from services.cli.output.show import show
from services.cli.recipes.docstrings import attributes, description, sentence
from services.contracts.model import (
    batching,
    calibration_recipe,
    recipe,
    sampling_recipe,
    task_recipe,
    text_recipe,
)
from services.contracts.model.document import Document
from services.contracts.model.recipe import Recipe

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def run_recipe_schema() -> None:
    """Print the schema, which is JSON in any case."""
    schema = recipe_schema()
    show(json.loads(schema), [schema.rstrip()], is_wide=True)


def recipe_schema() -> str:
    """The schema as a JSON text, of which the reference is made too."""
    schema = Recipe.model_json_schema()
    for name, part in (("Recipe", schema), *schema["$defs"].items()):
        _describe(part, _class(name))
    return json.dumps({"$schema": _DIALECT, **schema}, indent=1, ensure_ascii=False) + "\n"


def _class(name: str) -> type[Any]:
    own = (calibration_recipe, sampling_recipe, task_recipe, text_recipe)
    modules = (recipe, batching, *own)
    found: type[Any] = next(vars(module)[name] for module in modules if name in vars(module))
    return found


def _describe(part: dict[str, Any], documented: type[Any]) -> None:
    part["description"] = description(documented)
    if issubclass(documented, Document):
        meanings = attributes(documented)
        for name, field in part["properties"].items():
            field.pop("title", None)
            if name in meanings:
                field["description"] = sentence(meanings[name])
