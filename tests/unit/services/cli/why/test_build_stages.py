"""Where an engine is on its way: what `smelt why` and `smelt events` say of builds that run."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.builds.build_lease import BuildLease
from services.contracts.registry.registry import Registry
from services.contracts.text.moments import timestamp, utc_now
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.cli.fleet_stub import build, fleet_saying
from tests.unit.services.controller import build_world as world

KEY = world.key()
SINCE = timestamp(utc_now())
SHOWN = f"{SINCE[:10]} {SINCE[11:19]}Z"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """One model with one planned key."""
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    made = world.registry_with_model(tmp_path)
    made.write_plan(world.plan((KEY,)))
    return made


def hold(registry: Registry, number: int, stage: str) -> None:
    lease = BuildLease(
        holder="a",
        host="node-1",
        process_id=7,
        lease_s=30.0,
        stage=stage,
        stage_since=SINCE,
        taken_at=SINCE,
        renewed_at=timestamp(utc_now()),
    )
    registry.offer_lease(KEY.digest(), number, lease)


def smelt(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("build", "building"),
        ("prove", "proving"),
        ("benchmark", "timing"),
        ("wait", "waiting"),
        ("", "beginning"),
    ],
)
def test_an_engine_that_a_worker_has_is_not_missing(
    registry: Registry, stage: str, name: str
) -> None:
    assert " missing " in smelt("why", "m")
    hold(registry, 1, stage)
    text = smelt("why", "m")
    assert f" {name} " in text
    assert " missing " not in text
    assert f"{KEY.kind} {KEY.precision}: {name} since {SHOWN}, by node-1 (process 7)" in text
    (case,) = json.loads(smelt("why", "m", "--json"))["generations"]
    found = case["planned"][0]
    assert (found["key_state"], found["stage"]["since"]) == ("missing", SINCE)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({"queued_at": SINCE}, f"the model's build is number 2 in the queue since {SHOWN}"),
        ({"started_at": SINCE}, f"the model's build runs since {SHOWN}"),
    ],
    ids=["queued", "its_build_runs"],
)
def test_what_no_worker_has_waits_in_the_queue(
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    times: dict[str, str],
    words: str,
) -> None:
    builds = [build("other"), build("m", **times)]
    snapshot = fleet.FleetSnapshot(builds=builds, store_url=str(tmp_path / "store"))
    with fleet_saying(snapshot) as address:
        monkeypatch.setenv("SMELT_CONTROLLER", address)
        assert f"no worker has it yet: {words}" in smelt("why", "m")


def test_a_worker_beside_the_queue_does_not_contradict_it(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hold(registry, 1, "benchmark")
    snapshot = fleet.FleetSnapshot(builds=[build("m")], store_url=str(tmp_path / "store"))
    with fleet_saying(snapshot) as address:
        monkeypatch.setenv("SMELT_CONTROLLER", address)
        lines = smelt("why", "m").splitlines()
    assert f"{KEY.kind} {KEY.precision}: timing since {SHOWN}, by node-1 (process 7)" in lines
    (queue,) = [line for line in lines if "in the queue" in line]
    assert queue.endswith("; another build works on an engine of it meanwhile")
    assert not any(": nearest is " in line for line in lines)


def test_without_a_fleet_it_says_how_to_start_one(registry: Registry) -> None:
    assert smelt("why", "m").rstrip().endswith("no fleet runs here; start one: smelt up")


def test_events_end_with_what_is_being_done_now(registry: Registry) -> None:
    hold(registry, 1, "prove")
    line = f"{SHOWN} proving              m v1 {KEY.generation} {KEY.digest()[:12]}: "
    assert f"now: {line}{KEY.kind} {KEY.precision}" in smelt("events", "--wide")
    assert json.loads(smelt("events", "--json"))["events"] == []


def test_each_stage_that_a_build_enters_is_told_once(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(["build", "build", "prove"])

    def is_stopped(_: float) -> bool:
        if not (stage := next(looks, "")):
            return True
        hold(registry, registry.lease(KEY.digest()).number + 1, stage)
        return False

    @contextmanager
    def signals() -> Iterator[Callable[[float], bool]]:
        yield is_stopped

    monkeypatch.setattr("services.cli.why.events.stop_signals", signals)
    told = [line.split()[2] for line in smelt("events", "m", "--follow").splitlines()]
    assert told == ["building", "proving"]
