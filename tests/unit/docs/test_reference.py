"""The reference in docs/ is what the code says today."""

import json
from pathlib import Path

import jsonschema
import pytest

from services.cli.recipes.docstrings import attributes, description
from services.cli.recipes.recipe_schema import recipe_schema
from services.contracts.model.recipe import Recipe
from tests.reference.pages import FOLDER, reference_pages

ROOT = Path(__file__).resolve().parents[3]
PAGES = reference_pages()


@pytest.mark.parametrize("name", PAGES)
def test_what_is_committed_is_what_the_code_generates(name: str) -> None:
    assert (ROOT / name).read_text() == PAGES[name], f"{name} is stale: run .ci/generate"


def test_nothing_else_is_committed_beside_it() -> None:
    found = {str(path.relative_to(ROOT)) for path in (ROOT / FOLDER).iterdir()}
    assert found == {name for name in PAGES if name.startswith(FOLDER)}


def test_every_row_says_something() -> None:
    silent = [
        line for text in PAGES.values() for line in text.splitlines() if line.endswith("|  |")
    ]
    # The RPCs that are on have nothing in the column "off by default"; the head of a table is none.
    assert [line for line in silent if "Request`" not in line and "| default |" not in line] == []


def test_the_schema_takes_what_a_recipe_may_say_and_refuses_what_it_may_not() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(recipe_schema()))
    validator.check_schema(validator.schema)
    validator.validate(Recipe().model_dump(mode="json"))
    validator.validate({"precisions": ["fp32", "int8"], "batching": {"batch_dim": None}})
    for wrong in ({"precision": ["fp32"]}, {"kinds": ["tvm"]}, {"num_replicas": 0}):
        assert list(validator.iter_errors(wrong)), wrong


class _Documented:
    """What it is.

    More of it,
    in two lines.

    Attributes:
        low, high: both ends
            of it.
        other: one more: with a colon.
    """


def test_docstrings_are_read() -> None:
    assert description(_Documented) == "What it is.\n\nMore of it, in two lines."
    assert attributes(_Documented) == {
        "low": "both ends of it.",
        "high": "both ends of it.",
        "other": "one more: with a colon.",
    }
