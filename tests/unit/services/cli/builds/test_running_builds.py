"""What is being built now, as `smelt engines` and `smelt status` show it."""

import re
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from services.cli.builds.engines import engines_document
from services.cli.fleet.status import builds_document, fallback_lines, status_document
from services.cli.settings import CliSettings
from services.contracts.builds.build_lease import MAX_SKEW_S, BuildLease, pid_space
from services.contracts.builds.build_plan import BuildPlan, PlannedKey
from services.contracts.errors import NotFoundError
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.contracts.text.moments import timestamp, utc_now
from services.controller.explain.failed_builds import failed_builds
from services.controller.explain.running_builds import (
    running_builds,
    running_builds_text,
    stage_document,
)
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.cli.fleet_stub import replica
from tests.unit.services.controller import build_world as world

KEY = world.key()
DIGEST = KEY.digest()


def lease(age_s: float = 0.0, **changes: Any) -> BuildLease:
    at = timestamp(utc_now() - timedelta(seconds=age_s))
    fields: dict[str, Any] = {
        "holder": "a",
        "host": "node-1",
        "process_id": 7,
        "lease_s": 30.0,
        "stage": "build",
        "stage_since": at,
        "line": "compiling C++",
        "taken_at": at,
        "renewed_at": at,
    }
    return BuildLease(**fields | changes)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """One model with one planned key."""
    made = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    version = made.add_model_version(
        name="m", master=world.MASTER, recipe=Recipe(), source="s", source_fingerprint="0"
    )
    plan = BuildPlan(
        model="m",
        version=version.version,
        node_class=NodeClass(generation=KEY.generation),
        planned=(PlannedKey(key=KEY),),
        created_at=timestamp(utc_now()),
    )
    made.write_plan(plan)
    return made


def test_a_held_lease_is_a_running_build(registry: Registry) -> None:
    registry.offer_lease(DIGEST, 1, lease())
    (build,) = engines_document(registry, "m")["building"]
    assert (build["model"], build["digest"], build["stage"]) == ("m", DIGEST, "build")
    assert (build["host"], build["line"]) == ("node-1", "compiling C++")
    (table,) = running_builds_text([build])
    text = "\n".join(table.lines(width=None))
    assert "node-1 (7)" in text
    assert "compiling C++" in text


def test_a_worker_that_may_be_dead_is_said_to_be_silent(registry: Registry) -> None:
    registry.offer_lease(DIGEST, 1, lease(age_s=2500.0, lease_s=3000.0))
    (table,) = running_builds_text(running_builds(registry, ["m"]))
    text = "\n".join(table.lines(width=None))
    # However long the command takes to look.
    assert re.search(r"no sign of its worker for 25\d\d s", text)
    assert "after 3000 s" in text
    assert "compiling C++" not in text


@pytest.mark.parametrize(
    "over", [lease(is_released=True), lease(age_s=31.0 + MAX_SKEW_S)], ids=["released", "expired"]
)
def test_what_is_over_is_not_shown(registry: Registry, over: BuildLease) -> None:
    registry.offer_lease(DIGEST, 1, over)
    assert running_builds(registry, ["m"]) == []


def test_a_worker_of_this_machine_that_was_killed_is_not_shown(registry: Registry) -> None:
    # `smelt down` leaves no process behind, and a lease that nobody released.
    gone = subprocess.Popen(["true"])
    gone.wait()
    registry.offer_lease(DIGEST, 1, lease(process_id=gone.pid, pid_space=pid_space()))
    assert running_builds(registry, ["m"]) == []
    assert stage_document(registry, DIGEST, None) is None


def test_what_nobody_ever_built_is_not_shown(registry: Registry) -> None:
    assert running_builds(registry, ["m"]) == []


def test_what_is_proven_again_is_shown_too(registry: Registry) -> None:
    registry.publish_engine(world.manifest(KEY), {}, world.proof())
    assert running_builds(registry, ["m"]) == []
    registry.offer_lease(DIGEST, 1, lease(stage="prove"))
    (build,) = running_builds(registry, ["m"])
    assert (build["digest"], build["stage"]) == (DIGEST, "prove")


def test_a_worker_whose_clock_is_ahead_has_worked_for_no_time(registry: Registry) -> None:
    registry.offer_lease(DIGEST, 1, lease(age_s=-60.0, taken_at="2026-01-01T00:00:00+00:00"))
    (build,) = running_builds(registry, ["m"])
    assert build["stage_s"] == 0.0
    assert build["duration_s"] > 60.0


class TestStatus:
    def snapshot(self, tmp_path: Path, *names: str) -> fleet.FleetSnapshot:
        models = [fleet.ServedModel(name=name, version=1) for name in names]
        return fleet.FleetSnapshot(store_url=str(tmp_path / "store"), models=models)

    def test_it_shows_what_is_built_for_the_fleet_s_models(
        self, registry: Registry, tmp_path: Path
    ) -> None:
        registry.offer_lease(DIGEST, 1, lease(age_s=5.0))
        # Its own store is another one.
        settings = CliSettings(home=tmp_path / "elsewhere")
        document = builds_document(settings, self.snapshot(tmp_path, "m", "removed"))
        assert document["builds_unknown"] == ""
        (build,) = document["builds"]
        told = ("model", "generation", "kind", "precision", "stage")
        wanted = ("m", KEY.generation, KEY.kind, KEY.precision, "build")
        assert tuple(build[name] for name in told) == wanted
        assert 5.0 <= build["stage_s"] <= build["duration_s"]
        assert builds_document(settings, self.snapshot(tmp_path))["builds"] == []

    def test_what_failed_for_good_is_no_engine_that_may_still_come(
        self, registry: Registry, tmp_path: Path
    ) -> None:
        registry.write_plan(world.plan())
        snapshot = self.snapshot(tmp_path, "m")
        snapshot.replicas.append(replica(1, device_facts_json=world.DEVICE.canonical_json()))
        settings = CliSettings(home=tmp_path)
        assert builds_document(settings, snapshot)["failed_builds"] == []
        registry.record_build(world.refusal(world.KEYS[0], reason="all alike; give samples"))
        assert builds_document(settings, snapshot)["failed_builds"] == []
        registry.record_build(world.refusal(world.KEYS[1], reason="all alike; give samples"))
        failed = builds_document(settings, snapshot)["failed_builds"]
        replicas = status_document({}, snapshot)["replicas"]
        (line,) = fallback_lines(replicas, failed)
        words = "onnxruntime fp32 (and 1 more): proof failed: all alike"
        assert line == f"m version 1 on {world.GENERATION}: {words}"

    def test_of_a_model_that_serves_an_engine_nothing_is_read(self, registry: Registry) -> None:
        """As of this one, which the store does not have: a look at it would raise."""
        unread = replica(1, model_name="unread", fallback_reason="", engine_digest=DIGEST)
        snapshot = fleet.FleetSnapshot(replicas=[unread])
        assert not list(failed_builds(registry, "unread", snapshot))
        unread.fallback_reason = "no_engine"
        snapshot = fleet.FleetSnapshot(replicas=[unread])
        with pytest.raises(NotFoundError):
            list(failed_builds(registry, "unread", snapshot))

    def test_a_store_that_cannot_be_read_from_here_is_no_failure(self, tmp_path: Path) -> None:
        document = builds_document(CliSettings(home=tmp_path), self.snapshot(tmp_path, "m"))
        assert document["builds"] == []
        assert "no store at" in document["builds_unknown"]
