"""What `smelt models weights` and `smelt models list` say of versions: state, and share served."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.models.version_states import version_states
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.cli.fleet_stub import build, fleet_saying, replica
from tests.unit.services.controller import build_world as world

SINCE = "2026-11-21T13:59:23.123+00:00"


def served(version: int, state: str = "READY", **changes: Any) -> fleet.ServedModel:
    return fleet.ServedModel(name="m", version=version, state=state, **changes)


SNAPSHOT = fleet.FleetSnapshot(
    models=[served(1, weight=90), served(2, weight=5), served(3, "LOADING", weight=5)],
    replicas=[replica(1, "e" * 64), replica(2), replica(3, state=fleet.REPLICA_STATE_LOADING)],
    builds=[build("m", 2, SINCE), build("m", 1)],
)


def states(*versions: int, snapshot: fleet.FleetSnapshot = SNAPSHOT) -> dict[int, tuple[str, str]]:
    found = version_states(snapshot, "m", versions)
    return {number: (each.words, f"{each.share:.3f}") for number, each in found.items()}


def test_each_version_has_its_state_and_ready_ones_share() -> None:
    assert states(1, 2, 3, 4) == {
        1: ("ready", "0.947"),
        2: ("on the fallback, building", "0.053"),
        3: ("loading", "0.000"),
        4: ("not deployed", "0.000"),
    }


def test_without_weights_the_newest_that_is_ready_serves_all() -> None:
    snapshot = fleet.FleetSnapshot(
        models=[served(1), served(2, "LOADING")],
        replicas=[replica(1)],
        builds=[build("m", 2, SINCE)],
    )
    assert states(1, 2, snapshot=snapshot) == {
        1: ("on the fallback", "1.000"),
        2: ("building", "0.000"),
    }


def test_an_unloaded_model_says_so() -> None:
    snapshot = fleet.FleetSnapshot(models=[served(1, "UNAVAILABLE", is_unloaded=True)])
    assert states(1, snapshot=snapshot) == {1: ("unloaded", "0.000")}


class TestCommands:
    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setenv("SMELT_HOME", str(tmp_path))
        registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
        for source in ("1", "2", "3"):
            registry.add_model_version(
                name="m",
                master=world.MASTER,
                recipe=Recipe(),
                source=source,
                source_fingerprint=source,
            )
        registry.set_version_weights("m", {1: 90, 2: 5, 3: 5})
        return str(tmp_path / "store")

    def run(self, *words: str) -> str:
        return CliRunner().invoke(app, ["models", *words], catch_exceptions=False).output

    def test_with_a_fleet_what_serves_is_told(
        self, store: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        snapshot = fleet.FleetSnapshot()
        snapshot.CopyFrom(SNAPSHOT)
        snapshot.store_url = store
        with fleet_saying(snapshot) as address:
            monkeypatch.setenv("SMELT_CONTROLLER", address)
            weights, listed, each = (
                json.loads(self.run(*words, "--json"))
                for words in (["weights", "m"], ["list"], ["list", "--all-versions"])
            )
            table = self.run("weights", "m")
            models = self.run("list")
            versions = self.run("list", "--all-versions")
        assert weights["states"]["3"] == {"state": "loading", "served_share": 0.0}
        [model] = listed["models"]
        assert (model["version"], model["versions"], model["serving"]) == (3, [1, 2, 3], [1, 2])
        known = [(version["version"], version["state"]) for version in each["models"]]
        assert known == [(1, "ready"), (2, "on the fallback, building"), (3, "loading")]
        [row] = [line for line in table.splitlines() if "on the fallback, building" in line]
        assert "5.0%" in row
        assert "5.3%" in row
        assert "1, 2" in models
        assert "on the fallback, building" in versions

    def test_without_a_fleet_nothing_is_claimed(self) -> None:
        for words in (["weights", "m"], ["list"], ["list", "--all-versions"]):
            told = self.run(*words)
            assert (
                "no fleet runs here: what is served now is not known; start one: smelt up" in told
            )
        assert json.loads(self.run("weights", "m", "--json"))["states"] is None
        [model] = json.loads(self.run("list", "--json"))["models"]
        assert model["serving"] is None

    def test_a_controller_that_is_away_hides_no_model(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SMELT_CONTROLLER", "127.0.0.1:1")
        text = self.run("list", "--wide")
        assert "what is served now is not known: controller at 127.0.0.1:1" in text
        assert world.MASTER.digest[:12] in text
