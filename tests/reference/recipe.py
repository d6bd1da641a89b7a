"""The recipe: its JSON schema, with what the docstrings say of each field, and a page of it."""

import json
from typing import Any

from services.contracts.model import batching, recipe, task_recipe
from services.contracts.model.document import Document
from services.contracts.model.recipe import Recipe
from tests.reference.text import attributes, description, page, sentence, table

SCHEMA = "recipe.schema.json"
INTRODUCTION = (
    "A recipe is a YAML file that says what the owner of a model wants: "
    "`smelt models add NAME FILE.onnx --recipe recipe.yaml`. Every field has a default; a field or "
    f"value that does not exist is refused with its name. [{SCHEMA}]({SCHEMA}) is its JSON schema: "
    "an editor with a YAML language server checks and completes a recipe that begins with "
    f"`# yaml-language-server: $schema=docs/reference/{SCHEMA}`. "
    "[How to write one](../how-to/write-a-recipe.md) has examples."
)


def recipe_schema() -> str:
    schema = Recipe.model_json_schema()
    for name, part in (("Recipe", schema), *schema["$defs"].items()):
        _describe(part, _class(name))
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def recipe_page() -> str:
    schema = json.loads(recipe_schema())
    parts = {"Recipe": schema, **schema["$defs"]}
    return page("Recipe", INTRODUCTION, *(_section(*named) for named in parts.items()))


def _class(name: str) -> type:
    modules = (recipe, batching, task_recipe)
    return next(vars(module)[name] for module in modules if name in vars(module))


def _describe(part: dict[str, Any], documented: type) -> None:
    part["description"] = description(documented)
    if issubclass(documented, Document):
        meanings = attributes(documented)
        for name, field in part["properties"].items():
            field.pop("title", None)
            if name in meanings:
                field["description"] = sentence(meanings[name])


def _section(name: str, part: dict[str, Any]) -> str:
    head = f"## {name}\n\n{part['description']}"
    if "enum" in part:
        return f"{head}\n\nOne of {', '.join(f'`{value}`' for value in part['enum'])}."
    rows = [
        (f"`{field}`", _type(is_of), _default(is_of), is_of.get("description", ""))
        for field, is_of in part["properties"].items()
    ]
    return f"{head}\n\n{table(('field', 'type', 'default', 'meaning'), rows)}"


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in field:
        return f"`{field['const']}`"
    for choice in ("anyOf", "oneOf"):
        if choice in field:
            return " or ".join(_type(one) for one in field[choice] if one.get("type") != "null")
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    if field["type"] == "object":
        return f"mapping to {_type(field['additionalProperties'])}"
    return str(field["type"]) + _limits(field)


def _limits(field: dict[str, Any]) -> str:
    words = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    found = [f"{sign} {field[word]}" for word, sign in words.items() if word in field]
    return f", {', '.join(found)}" if found else ""


def _default(field: dict[str, Any]) -> str:
    if "default" not in field:
        return "required"
    value = field["default"]
    if value in (None, "", [], {}) or (isinstance(value, dict) and "$ref" in field):
        return ""
    return f"`{json.dumps(value)}`"
