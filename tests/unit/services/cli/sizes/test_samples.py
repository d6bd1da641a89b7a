"""`smelt samples`: what is printed, and what `delete`, `models remove` and `prune` take."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.events import Event, EventKind, EventPosition
from services.contracts.model.calibration_recipe import Calibration, TrafficCalibration
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Recipe
from services.contracts.model.sampling_recipe import Sampling
from services.contracts.registry import event_log
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.contracts.traffic.sampled_rows import SampledRow
from services.controller.explain import why_cases
from services.controller.explain.why_cases import drift_words
from tests.unit.services.replica.models import text_model

NOW = datetime.now(UTC)


class World:
    """A store with a sampled model, calibrated with texts of 8 tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = str(folder / "store")
        self.files = folder / "store" / "samples" / "m"
        self.registry = Registry(open_store(self.url), folder / "cache")

    def publish(self, recipe: Recipe | None = None) -> ModelVersion:
        model = text_model()
        calibration = self.folder / "calibration.npz"
        ids = np.tile(np.arange(8), (50, 1))
        np.savez(calibration, ids=ids, mask=np.ones_like(ids))
        return self.registry.add_model_version(
            name="m",
            master=model.master,
            recipe=recipe or model.recipe.model_copy(update={"sampling": Sampling()}),
            source="",
            source_fingerprint="",
            calibration=calibration,
        )

    def sample(
        self,
        version: int,
        length: int,
        age: timedelta = timedelta(),
        ahead: timedelta = timedelta(),
    ) -> None:
        """A window of 20 rows that the store has had for so long, by a clock that is ahead."""
        ids = np.arange(length)
        rows = [SampledRow("b", {"ids": ids, "mask": np.ones_like(ids)}, {"who": "x"})] * 20
        end = NOW - age + ahead
        before = set(self.files.glob("*"))
        self.registry.add_sample_window("m", version, (end, end), rows, {"b": 20})
        for file in {*self.files.glob("*")} - before:
            os.utime(file, ((NOW - age).timestamp(),) * 2)

    def run(self, *words: str) -> Any:
        done = CliRunner().invoke(app, [*words, "--store", self.url], catch_exceptions=False)
        assert done.exit_code == 0
        return json.loads(done.stdout) if "--json" in words else done.output

    def versions(self) -> list[int]:
        return [window.version for window in self.registry.sample_windows("m").values()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.publish()
    return world


def test_lengths_values_and_drift_are_shown(world: World) -> None:
    world.sample(1, length=8, age=timedelta(hours=1))
    world.sample(1, length=16)
    said = world.run("samples", "m", "--json")
    assert (said["num_samples"], said["num_windows"], said["num_different"]) == (40, 2, {"who": 1})
    assert said["features"]["length sequence"] == {
        "least": 8,
        "p1": 8,
        "p50": 12,
        "p90": 16,
        "p99": 16,
        "largest": 16,
    }
    assert said["features"]["values ids"]["largest"] == 15
    length, values = said["drift"]
    assert (length["what"], length["distance"]) == ("length sequence", 0.5)
    assert 0 < length["noise"] < 0.5
    assert values["distance"] == pytest.approx(0.25)
    text = world.run("samples", "m")
    assert "m: 40 samples in 2 windows" in text
    assert "not encrypted" in text
    assert "Drift from the calibration of version 1" in text


def test_rows_that_are_not_finite_are_left_out_and_counted(world: World) -> None:
    world.sample(1, length=8)
    expected = world.run("samples", "m", "--json")
    ids = np.arange(8, dtype=np.float32)
    mask = np.ones(8, np.int64)
    for value in (np.nan, -np.inf):
        rows = [SampledRow("b", {"ids": np.where(ids == 3, value, ids), "mask": mask})]
        world.registry.add_sample_window("m", 1, (NOW, NOW), rows, {"b": 1})
    said = world.run("samples", "m", "--json")
    assert (said["features"], said["drift"]) == (expected["features"], expected["drift"])
    assert (said["num_samples"], expected["num_samples"]) == (22, 20)
    assert said["left_out"] == "left out: 2 rows with NaN or infinite values"
    assert said["left_out"] in world.run("samples", "m")


def test_without_samples_it_is_said_what_to_wait_for(world: World) -> None:
    for recipe, hint in ((None, "write what they kept every 300 s"), (Recipe(), "`sampling: ")):
        world.publish(recipe)
        with pytest.raises(NotFoundError, match=hint):
            world.run("samples", "show", "m")


def test_samples_are_deleted_up_to_a_moment_and_with_their_version(world: World) -> None:
    for version, days in ((1, 3), (1, 2), (2, 1)):
        world.sample(version, length=8, age=timedelta(days=days))
    day = (NOW - timedelta(days=2.5)).isoformat()
    said = world.run("samples", "delete", "m", "--before", day, "--json")
    assert (said["num_deleted"], said["num_left"]) == (20, 40)
    world.publish(text_model().recipe)
    said = world.run("models", "remove", "m", "--version", "1", "--json")
    assert said["num_samples_deleted"] == 20
    assert world.versions() == [2]
    world.run("samples", "delete", "m")
    assert not list((world.folder / "store" / "samples" / "m").glob("*"))


def test_a_wrong_name_is_refused_and_not_called_deleted(world: World) -> None:
    world.sample(1, length=8)
    for name in ("mm", ""):
        with pytest.raises((NotFoundError, InvalidRequestError), match=f"'{name}'"):
            world.run("samples", "delete", name)
    assert world.versions() == [1]
    for left in ("20 samples deleted", "0 samples deleted"):
        assert left in world.run("samples", "delete", "m")


def test_windows_of_another_key_or_master_are_left_out_and_said(world: World) -> None:
    world.sample(1, length=8)
    key = world.folder / "old.key"
    key.write_text("a" * 64)
    sealing = Registry(open_store(world.url), world.folder / "cache", key)
    rows = [SampledRow("b", {"ids": np.arange(16), "mask": np.ones(16, np.int64)})]
    sealing.add_sample_window("m", 1, (NOW, NOW), rows, {"b": 1})
    world.sample(7, length=12)
    said = world.run("samples", "m", "--json")
    assert (said["num_samples"], said["num_windows"]) == (41, 3)
    assert said["features"]["length sequence"]["largest"] == 8
    text = world.run("samples", "m")
    left_out = "left out: 1 window of another master or tokenizer; left out: 1 window sealed with"
    assert left_out in text
    assert "SMELT_SAMPLE_KEY" in text
    assert f"samples of m: {left_out}" in world.run("buckets", "m")
    sizes = world.run("buckets", "m", "--json")["dimensions"]["sequence"]
    assert (sizes["largest"], sizes["p50"]) == (8, 8)


def orphan(world: World, age: timedelta) -> Path:
    """Rows whose writer was killed before it wrote the window."""
    world.sample(1, length=8, age=age)
    folder = world.folder / "store" / "samples" / "m"
    window = min(folder.glob("*.json"))
    window.unlink()
    return window.with_suffix(".npz")


def test_rows_that_no_window_shows_are_deleted_too(world: World) -> None:
    rows = orphan(world, timedelta(days=3))
    world.sample(1, length=8)
    world.run("samples", "delete", "m", "--before", (NOW - timedelta(days=4)).isoformat())
    assert rows.exists()
    world.run("samples", "delete", "m", "--before", (NOW - timedelta(days=1)).isoformat())
    assert not rows.exists()
    assert world.versions() == [1]
    for words in (("samples", "delete", "m"), ("models", "remove", "m")):
        rows = orphan(world, timedelta(days=3))
        assert rows.exists()
        world.run(*words)
        assert not list(rows.parent.glob("*"))


def test_a_window_that_cannot_be_read_is_left_out_and_can_be_deleted(world: World) -> None:
    world.sample(1, length=8, age=timedelta(days=3))
    folder = world.folder / "store" / "samples" / "m"
    next(folder.glob("*.json")).write_text("{")
    world.sample(1, length=8)
    assert world.run("samples", "m", "--json")["num_windows"] == 1
    world.run("samples", "delete", "m", "--before", (NOW - timedelta(days=1)).isoformat())
    assert world.versions() == [1]
    assert len(list(folder.glob("*"))) == 2


def test_pruning_takes_samples_that_no_recipe_keeps(world: World) -> None:
    world.publish(text_model().recipe)
    for version, days in ((1, 2), (1, 8), (2, 2), (3, 2)):
        # Their writers' clocks are of no account.
        world.sample(version, length=8, age=timedelta(days=days), ahead=timedelta(days=400))
    world.run("prune", "--older-than", "1", "--yes")
    (window,) = world.registry.sample_windows("m").values()
    assert (window.version, window.ends_at[:10]) == (1, f"{NOW + timedelta(days=398):%Y-%m-%d}")
    assert len(list(world.files.glob("*"))) == 2


def test_why_tells_that_requests_moved_of_the_version_that_they_moved_from(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def published(min_samples: int) -> ModelVersion:
        calibration = Calibration(traffic=TrafficCalibration(min_samples=min_samples))
        changed = {"sampling": Sampling(), "calibration": calibration}
        return world.publish(text_model().recipe.model_copy(update=changed))

    first = published(64)
    second = published(65)
    event = Event(
        at=NOW.isoformat(),
        kind=EventKind.TRAFFIC_DRIFTED,
        model="m",
        version=first.version,
        why="length 0.9",
    )
    position = world.registry.append_event(event, EventPosition())
    assert drift_words(world.registry, first) == f"m version {first.version}: length 0.9"
    assert drift_words(world.registry, second) == ""
    for module in (event_log, why_cases):
        monkeypatch.setattr(module, "MOST_SEARCHED", 1)
    assert position
    world.registry.append_event(event.model_copy(update={"model": "n"}), position)
    unread = "no drift in the last 1 events; see its samples: smelt samples show m"
    assert drift_words(world.registry, first) == f"m version {first.version}: {unread}"
