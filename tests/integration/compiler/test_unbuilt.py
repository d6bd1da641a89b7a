"""`smelt advise --measure`: engines that need no build are timed here, and decide between them."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.conformance.tiny_model import master_record, save_master, tiny_model

_TIMED = {("openvino", "fp32"), ("onnxruntime", "fp32")}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Model `m`, of which nothing is built."""
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    monkeypatch.setenv("SMELT_BENCHMARK_S", "0.05")
    opened = open_store(str(tmp_path / "store"))
    path = save_master(tiny_model(), tmp_path)
    files = {each.name: opened.put_blob(each) for each in (path, path.with_name("weights.bin"))}
    record = master_record("m" * 64).model_copy(update={"files": files})
    Registry(opened, tmp_path / "cache").add_model_version(
        name="m", master=record, recipe=Recipe(), source="s", source_fingerprint="0"
    )
    return tmp_path / "store"


def asked(*words: str) -> tuple[Any, str]:
    done = CliRunner().invoke(app, ["advise", "m", "--json", *words], catch_exceptions=False)
    return json.loads(done.stdout), done.stderr


def test_what_needs_no_build_is_ordered_by_its_own_time(store: Path) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    (by_table,) = asked()[0]["generations"]
    (found,) = asked("--measure")[0]["generations"]
    timed = [each for each in found["try"] if each["why"].startswith("timed here: ")]
    assert {(each["kind"], each["precision"]) for each in timed} >= _TIMED
    seconds = [float(each["why"].split()[2]) for each in timed]
    speeds = [each["middle"] for each in timed]
    # Three digits of the seconds are shown.
    assert [speeds[0] / each for each in speeds] == pytest.approx(
        [each / seconds[0] for each in seconds], rel=0.02
    )
    # Together they are as fast as the table says.
    kinds = {each["kind"]: each["middle"] for each in by_table["try"]}
    kept = {each["kind"]: each["middle"] for each in timed}
    assert kept["openvino"] * kept["onnxruntime"] == pytest.approx(
        kinds["openvino"] * kinds["onnxruntime"]
    )
    after = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.usefixtures("store")
def test_another_generation_cannot_be_measured_here() -> None:
    done = CliRunner().invoke(app, ["advise", "m", "--generation", "cuda-sm10", "--measure"])
    assert "--measure times on this host (cpu-" in str(done.exception)
    assert "advice is on cuda-sm10" in str(done.exception)


@pytest.mark.usefixtures("store")
def test_where_the_child_is_ended_the_advice_stands_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SMELT_PROOF_TIME_LIMIT_S", "0.1")
    document, remarks = asked("--measure")
    assert document == asked()[0]
    assert "m is not measured: " in remarks
    assert "SMELT_PROOF_TIME_LIMIT_S" in remarks
