"""A page of the recipe, made from its JSON schema."""

import json
from typing import Any

from services.cli.recipes.recipe_schema import recipe_schema
from tests.reference.text import page, table

SCHEMA = "recipe.schema.json"
INTRODUCTION = (
    "A recipe is a YAML file that says what the owner of a model wants: "
    "`smelt models add NAME FILE.onnx --recipe recipe.yaml`. Every field has a default; a field or "
    f"value that does not exist is refused with its name. [{SCHEMA}]({SCHEMA}) is its JSON schema, "
    "as `smelt recipe schema` prints it: an editor with a YAML language server checks and "
    f"completes a recipe that begins with `# yaml-language-server: $schema={SCHEMA}`. "
    "[How to write one](../how-to/models/write-a-recipe.md) has examples."
)


def recipe_page() -> str:
    schema = json.loads(recipe_schema())
    parts = {"Recipe": schema, **schema["$defs"]}
    return page("Recipe", INTRODUCTION, *(_section(*named) for named in parts.items()))


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
