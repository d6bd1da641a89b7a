"""`smelt models weights`: read, set, shown, cleared."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.models.weights import weights_from_texts
from services.cli.registry import who_asks
from services.contracts.errors import InvalidRequestError
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store

MASTER = MasterRecord(digest="d" * 64, files={}, inputs=(), outputs=(), opset=20, num_parameters=0)


def test_weights_are_read() -> None:
    assert weights_from_texts(["1=95", "2=0.5"]) == {1: 95.0, 2: 0.5}


@pytest.mark.parametrize("text", ["1", "1=", "=5", "0=1", "x=1", "1=-1", "1=1e3", "1=nan", "2=5"])
def test_what_is_no_weight_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"expected VERSION=WEIGHT"):
        weights_from_texts(["2=1", text])


def test_set_show_and_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    for source in ("1", "2"):
        registry.add_model_version(
            name="mini", master=MASTER, recipe=Recipe(), source=source, source_fingerprint=source
        )

    def run(*words: str) -> str:
        return (
            CliRunner()
            .invoke(app, ["models", "weights", "mini", *words], catch_exceptions=False)
            .stdout
        )

    assert "the newest version that is ready gets every request" in run()
    told = json.loads(run("1=95", "2=5", "--json"))
    assert told == {
        "name": "mini",
        "versions": [1, 2],
        "weights": {"1": 95.0, "2": 5.0},
        "states": None,
    }
    assert "95.0%" in run()
    assert registry.version_weights("mini") == {1: 95.0, 2: 5.0}
    assert json.loads(run("--clear", "--json"))["weights"] == {}
    changes = registry.weight_changes("mini")
    assert [(change.weights, change.who) for change in changes] == [
        ({1: 95.0, 2: 5.0}, who_asks()),
        ({}, who_asks()),
    ]
    with pytest.raises(InvalidRequestError, match="not both"):
        run("1=1", "--clear")


def test_an_unknown_model_has_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    open_store(str(tmp_path / "store"))
    result = CliRunner().invoke(app, ["models", "weights", "absent"])
    assert "model 'absent' not found" in str(result.exception)
