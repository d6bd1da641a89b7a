"""`smelt plan`, `report`, `why` and `buckets` while a newer version is being built."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.kinds import Precision
from services.contracts.model.recipe import Recipe, Tolerance
from services.contracts.registry.registry import Registry
from services.contracts.traffic.sampled_rows import SampledRow
from tests.unit.services.cli.report.report_world import add_generation, store_with_model

HERE = "cpu-x86_64-v3"
WORDS = "m: version 1 is used, the newest with timed engines; version 2 has none yet"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Version 1 of model `m` has engines, version 2 has other tolerances and none."""
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    made = store_with_model(tmp_path)
    add_generation(made, HERE)
    strict = Tolerance(rel_l2=1e-9, max_abs=1e-9, cosine_distance=1e-9)
    changed = {"recipe": Recipe(tolerances={Precision.FP32: strict})}
    made.add_changed_version(made.model_version("m"), changed)
    return made


def smelt(*words: str) -> str:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def smelt_json(*words: str) -> Any:
    return json.loads(smelt(*words, "--json"))


def profile(folder: Path, *, generation: str = HERE, more: str = "") -> str:
    path = folder / "profile.yaml"
    path.write_text(
        f"models: {{m: {{requests_per_s: 1, p99_ms: 500{more}}}}}\n"
        f"devices: {{{generation}: {{price_per_h: 3.6}}}}\n"
    )
    return str(path)


@pytest.mark.usefixtures("registry")
def test_a_plan_takes_the_newest_version_that_was_measured(tmp_path: Path) -> None:
    asked = profile(tmp_path)
    assert smelt_json("plan", asked)["versions"] == {"m": 1}
    assert WORDS in " ".join(smelt("plan", asked).split())
    with pytest.raises(InvalidRequestError, match="no engine of m was proven"):
        smelt("plan", profile(tmp_path, generation="cuda-sm90"))


@pytest.mark.usefixtures("registry")
def test_a_report_takes_the_newest_version_that_was_measured() -> None:
    document = smelt_json("report", "m")
    assert (document["version"], document["file"], document["note"]) == (1, "m-v1.html", WORDS)
    assert WORDS in Path("m-v1.html").read_text()
    asked = smelt_json("report", "m", "--version", "2")
    assert (asked["version"], asked["note"]) == (2, "")


@pytest.mark.usefixtures("registry")
def test_what_is_explained_is_the_newest_version_that_was_measured() -> None:
    document = smelt_json("why", "m")
    assert (document["version"], document["note"]) == (1, WORDS)
    assert WORDS in smelt("why", "m")
    asked = smelt_json("why", "m", "--version", "2")
    assert (asked["version"], asked["note"]) == (2, "")


def test_buckets_are_those_of_the_newest_version_that_was_measured(registry: Registry) -> None:
    for version, length in ((1, 16), (2, 64)):
        row = SampledRow("b", {"ids": np.ones(length, np.int64)})
        span = (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC))
        registry.add_sample_window("m", version, span, [row], {"b": 1})
    document = smelt_json("buckets", "m")
    assert (document["version"], document["note"]) == (1, WORDS)
    assert WORDS in smelt("buckets", "m")
    asked = smelt_json("buckets", "m", "--version", "2")
    assert (asked["version"], asked["note"]) == (2, "")


def test_the_newest_version_is_taken_once_it_was_measured(
    registry: Registry, tmp_path: Path
) -> None:
    add_generation(registry, HERE)
    assert smelt_json("plan", profile(tmp_path))["versions"] == {"m": 2}
    assert smelt_json("plan", profile(tmp_path, more=", version: 1"))["versions"] == {"m": 1}
    assert smelt_json("report", "m")["version"] == 2
