"""`smelt why` names the builds that a model waits behind."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.registry.registry import Registry
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.cli.fleet_stub import build, fleet_saying, replica
from tests.unit.services.controller import build_world as world

QUEUED = "2026-11-21T14:00:00.000+00:00"
SINCE = "2026-11-21T13:59:23.123+00:00"
WAITS = "m: its build (first build for these nodes) is number"
BEHIND = (
    "in the queue since 2026-11-21 14:00:00Z; "
    f"running now: big version 3 on {world.GENERATION} (since 2026-11-21 13:59:23Z)"
)
ELSEWHERE = build("other", node_class="f" * 64, generation="cuda-sm90")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    return world.registry_with_model(tmp_path)


def why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *builds: fleet.FleetBuild) -> Any:
    """What it says for people, and for programs."""
    snapshot = fleet.FleetSnapshot(
        store_url=str(tmp_path / "store"), replicas=[replica(1)], builds=builds
    )
    text, document = said(monkeypatch, snapshot, "why", "m")
    return text, json.loads(document)["generations"]


def said(
    monkeypatch: pytest.MonkeyPatch, snapshot: fleet.FleetSnapshot, *command: str
) -> tuple[str, str]:
    """What a command prints of a fleet, as text and as JSON."""
    with fleet_saying(snapshot) as address:
        monkeypatch.setenv("SMELT_CONTROLLER", address)
        text, document = (
            CliRunner().invoke(app, [*command, *more], catch_exceptions=False).output
            for more in ([], ["--json"])
        )
    return text, document


@pytest.mark.parametrize(
    ("before", "num_before", "words"),
    [
        ((), 0, f"{WAITS} 1 {BEHIND}"),
        ((build("a"),), 1, f"{WAITS} 2 {BEHIND}"),
        ((build("a"), ELSEWHERE, build("b")), 2, f"{WAITS} 3 {BEHIND}"),
    ],
)
def test_what_runs_and_what_comes_before_is_said(
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[fleet.FleetBuild, ...],
    num_before: int,
    words: str,
) -> None:
    running = build("big", 3, SINCE)
    ours = build("m", queued_at=QUEUED)
    text, [case] = why(tmp_path, monkeypatch, running, *before, ours, build("late"))
    assert words in text.splitlines()
    assert "Planned: none" not in text
    [blocker] = case["build"]["waits_for"]
    assert (blocker["model"], blocker["version"], blocker["started_at"]) == ("big", 3, SINCE)
    assert (case["build"]["num_before"], case["build"]["started_at"]) == (num_before, None)
    assert case["build"]["queued_at"] == QUEUED


@pytest.mark.parametrize("command", [("status",), ("why", "m")])
def test_a_fleet_that_stands_by_shows_who_builds(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    standby = fleet.Standby(holder="node-2 (process 7)", since=SINCE, reason="it stands by")
    snapshot = fleet.FleetSnapshot(store_url=str(tmp_path / "store"), standby=standby)
    text, document = said(monkeypatch, snapshot, *command)
    assert "it stands by" in text.splitlines()
    assert json.loads(document)["standby"] == {
        "holder": "node-2 (process 7)",
        "since": SINCE,
        "reason": "it stands by",
    }


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({}, "loads an engine or the fallback"),
        ({"device_facts_json": b""}, "loads an engine or the fallback"),
        ({"engine_kind": "onnxruntime", "engine_digest": "e" * 64}, "opens its data port"),
    ],
)
@pytest.mark.parametrize("has_plan", [True, False])
def test_status_and_why_show_the_same_replica_that_loads(
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    stage: str,
    has_plan: bool,
) -> None:
    if has_plan:
        registry.write_plan(world.plan())
    loading = replica(1, state=fleet.REPLICA_STATE_LOADING, fallback_reason="", state_since=SINCE)
    loading.MergeFrom(fleet.ReplicaReport(**changes))
    if not changes.get("device_facts_json", b"x"):
        loading.ClearField("device_facts_json")
    snapshot = fleet.FleetSnapshot(store_url=str(tmp_path / "store"), replicas=[loading])
    words = f"replica r1 is loading since 2026-11-21 13:59:23Z ({stage})"
    for command in (("status",), ("why", "m")):
        text, document = said(monkeypatch, snapshot, *command)
        assert words in text
        assert "no replica is attached" not in text
        assert '"LOADING"' in document or not json.loads(document)["generations"]


def test_its_own_build_is_no_wait(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, [case] = why(tmp_path, monkeypatch, build("m", 1, SINCE), build("late"))
    assert "m: its build (1 to build) runs since 2026-11-21 13:59:23Z" in text.splitlines()
    assert (case["build"]["waits_for"], case["build"]["num_before"]) == ([], 0)


@pytest.mark.parametrize(
    ("started_at", "words"), [(SINCE, "its first build runs"), ("", "its first build is queued")]
)
def test_a_generation_whose_first_build_is_under_way_is_not_unplanned(
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    started_at: str,
    words: str,
) -> None:
    first = build("m", 1, started_at, generation="cuda-sm90", reason="first build for these nodes")
    text, cases = why(tmp_path, monkeypatch, first)
    assert "nothing is planned" not in text
    assert f"m version 1 on cuda-sm90: no replica is attached; {words}" in text.splitlines()
    assert {case["generation"] for case in cases} == {world.GENERATION, "cuda-sm90"}


def test_where_nothing_is_due_nothing_is_said(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, [case] = why(tmp_path, monkeypatch, build("big", 3, SINCE), build("m", 2))
    assert "Planned: none" in text
    assert case["build"] is None
