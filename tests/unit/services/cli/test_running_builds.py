"""What is being built now, as `smelt engines` shows it."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from services.cli import output
from services.cli.engines import engines_document
from services.cli.running_builds import print_running_builds, running_builds
from services.contracts.build_lease import MAX_SKEW_S, BuildLease
from services.contracts.build_plan import BuildPlan, PlannedKey, timestamp, utc_now
from services.contracts.node_class import NodeClass
from services.contracts.object_store import open_store
from services.contracts.recipe import Recipe
from services.contracts.registry import Registry
from tests.unit.services.controller import build_world as world

KEY = world.key()
DIGEST = KEY.digest()


def lease(age_s: float = 0.0, **changes: Any) -> BuildLease:
    at = timestamp(utc_now() - timedelta(seconds=age_s))
    fields: dict[str, Any] = {
        "holder": "a", "host": "node-1", "process_id": 7, "lease_s": 30.0, "stage": "build",
        "stage_since": at, "line": "compiling C++", "taken_at": at, "renewed_at": at,
    }  # fmt: skip
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


def test_a_held_lease_is_a_running_build(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.offer_lease(DIGEST, 1, lease())
    (build,) = engines_document(registry, "m")["building"]
    assert (build["model"], build["digest"], build["stage"]) == ("m", DIGEST, "build")
    assert (build["host"], build["line"]) == ("node-1", "compiling C++")
    console = Console(record=True, width=200, force_terminal=False)
    monkeypatch.setattr(output, "console", console)
    print_running_builds([build])
    text = console.export_text()
    assert "node-1 (7)" in text
    assert "compiling C++" in text


@pytest.mark.parametrize(
    "over", [lease(is_released=True), lease(age_s=31.0 + MAX_SKEW_S)], ids=["released", "expired"]
)
def test_what_is_over_is_not_shown(registry: Registry, over: BuildLease) -> None:
    registry.offer_lease(DIGEST, 1, over)
    assert running_builds(registry, ["m"]) == []


def test_what_nobody_ever_built_is_not_shown(registry: Registry) -> None:
    assert running_builds(registry, ["m"]) == []


def test_what_is_published_is_not_shown(registry: Registry) -> None:
    registry.offer_lease(DIGEST, 1, lease())
    registry.publish_engine(world.manifest(KEY), {}, world.proof())
    assert running_builds(registry, ["m"]) == []
