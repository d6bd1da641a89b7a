"""Commands that read a store, and how each command says that it failed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.builds.engines import engines_document, engines_text
from services.cli.main import app, main
from services.contracts.errors import NotFoundError
from services.contracts.model.recipe import InputRecipe, Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.contracts.terms import proof_terms
from services.contracts.text.text_table import Table
from tests.unit.services.controller import build_world as world

READING = (
    ("models", "list"),
    ("engines",),
    ("engines", "m"),
    ("events",),
    ("why", "m"),
    ("build", "m"),
    ("rebuild", "m"),
)
MINE, THEIRS = Recipe(), Recipe(inputs={"x": InputRecipe(high=9)})


def key_for(recipe: Recipe) -> Any:
    return world.key(proof_terms=proof_terms(recipe, world.key().precision, None))


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """One master; an engine for the recipe of model "mine", one for that of "theirs"."""
    made = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    for name, recipe in (("mine", MINE), ("theirs", THEIRS)):
        made.add_model_version(
            name=name, master=world.MASTER, recipe=recipe, source="s", source_fingerprint="0"
        )
        made.publish_engine(world.manifest(key_for(recipe)), {}, world.proof())
    return made


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_mistyped_store_is_refused_and_not_made(words: tuple[str, ...], tmp_path: Path) -> None:
    mistyped = tmp_path / "stroe"
    with pytest.raises(NotFoundError, match=r"no store at .*/stroe; `smelt up` or"):
        CliRunner().invoke(app, [*words, "--store", str(mistyped)], catch_exceptions=False)
    assert not mistyped.exists()


def test_engines_json_says_which_are_for_a_model_s_recipe(registry: Registry) -> None:
    (master,) = engines_document(registry, "")["masters"]
    mine, theirs = key_for(MINE).digest(), key_for(THEIRS).digest()
    assert {engine["digest"] for engine in master["engines"]} == {mine, theirs}
    for model, ours, others in zip(master["models"], (mine, theirs), (theirs, mine), strict=True):
        assert model["engines"] == [ours]
        assert list(model["other_recipe"]) == [others]
        assert f"smelt build {model['name']}" in model["other_recipe"][others]


def shown(registry: Registry, model: str) -> list[tuple[str, str]]:
    """The title of each table, and the engine in it."""
    tables = (part for part in engines_text(registry, [model]) if isinstance(part, Table))
    return [(table.title, row[-1]) for table in tables for row in table.rows]


def test_those_of_an_older_recipe_are_in_a_table_of_their_own_after_ours(
    registry: Registry,
) -> None:
    registry.add_model_version(
        name="mine", master=world.MASTER, recipe=THEIRS, source="s", source_fingerprint="1"
    )
    title = f"Engines of mine version 2 on {world.GENERATION}"
    assert shown(registry, "mine") == [
        (title, key_for(THEIRS).digest()[:12]),
        (f"{title} for another recipe", key_for(MINE).digest()[:12]),
    ]


def test_those_of_another_model_of_the_same_master_are_not_listed(registry: Registry) -> None:
    for model, recipe in (("mine", MINE), ("theirs", THEIRS)):
        assert [digest for _, digest in shown(registry, model)] == [key_for(recipe).digest()[:12]]


@pytest.mark.parametrize("is_json", [False, True])
def test_an_error_is_words_for_people_and_a_document_for_programs(
    is_json: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = ["models", "list", "--store", str(tmp_path / "none"), *["--json"] * is_json]
    monkeypatch.setattr(sys, "argv", ["smelt", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    told = capfd.readouterr()
    assert told.out == ""
    if is_json:
        error = json.loads(told.err)["error"]
        assert error["kind"] == "NotFoundError"
        assert "no store at" in error["message"]
    else:
        assert told.err.startswith("error: no store at")
