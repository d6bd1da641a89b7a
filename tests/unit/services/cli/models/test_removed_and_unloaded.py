"""Models that are removed, unloaded, or cannot be read: what is said, and what is left."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.errors import (
    NotFoundError,
)
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import ObstoreArtifactStore
from tests.unit.services.cli.models.adding import add, source


def test_remove_says_what_is_left_and_that_engines_stay(
    registry: Registry,
    store: ObstoreArtifactStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    add(registry, source(tmp_path / "a"))
    add(registry, source(tmp_path / "b", seed=8))
    words = ["models", "remove", "tiny", "--json"]
    done = CliRunner().invoke(app, [*words, "--version", "2"], catch_exceptions=False)
    kept = {"name": "tiny", "left": [1], "unread": {}}
    assert json.loads(done.stdout) == kept | {"removed": [2], "num_samples_deleted": 0}
    broken = "models/tiny/versions/000003.json"
    store.create(broken, b"{broken")
    done = CliRunner().invoke(app, [*words[:-1], "--version", "3"], catch_exceptions=False)
    (unread,) = (line for line in done.stdout.splitlines() if "could not be read" in line)
    assert unread.startswith("version 3 could not be read: ")
    assert broken in unread
    assert "tiny: version 3 removed; version 1 is to serve" in done.stdout
    done = CliRunner().invoke(app, words[:-1], catch_exceptions=False)
    assert "tiny: version 1 removed; nothing is left to serve" in done.stdout
    assert "engines stay" in done.stdout
    assert registry.model_names() == []
    with pytest.raises(NotFoundError, match="'tiny' not found; there are: none"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert add(registry, source(tmp_path / "b", seed=8)).version == 4


def test_the_list_shows_other_models_beside_a_version_that_cannot_be_read(
    registry: Registry,
    store: ObstoreArtifactStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    add(registry, source(tmp_path / "a"))
    for name, number in (("tiny", 2), ("other", 1)):
        store.create(f"models/{name}/versions/{number:06}.json", b"{broken")
    for all_versions in ((), ("--all-versions",)):
        words = ["models", "list", *all_versions]
        done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
        found = json.loads(done.stdout)
        assert [(each["name"], each["version"]) for each in found["models"]] == [("tiny", 1)]
        unread = [(each["name"], each["version"]) for each in found["unread"]]
        assert unread == [("other", 1), ("tiny", 2)]
        printed = CliRunner().invoke(app, words, catch_exceptions=False).stdout
        assert "tiny version 2 cannot be read: " in printed
        assert "smelt models remove other --version 1" in printed


def test_what_is_unloaded_says_so_until_it_is_loaded_or_removed(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))

    def said(*words: str) -> str:
        done = CliRunner().invoke(app, ["models", *words], catch_exceptions=False)
        return " ".join(done.stdout.split())

    add(registry, source(tmp_path / "a"))
    assert "undo it with: smelt models load tiny" in said("unload", "tiny")
    assert registry.unloaded_models() == {"tiny"}
    assert "(unchanged)" in said("unload", "tiny")
    assert "serves after: smelt models load tiny" in said("add", "tiny", source(tmp_path / "b", 8))
    assert said("load", "tiny") == "tiny is to be served; follow it: smelt status"
    assert registry.unloaded_models() == set()
    said("unload", "tiny")
    said("remove", "tiny")
    assert registry.unloaded_models() == set()
    with pytest.raises(NotFoundError, match="'tiny' not found"):
        said("load", "tiny")
