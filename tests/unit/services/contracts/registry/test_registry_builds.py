"""Build plans, rebuild requests and tasks in a store."""

from pathlib import Path

import pytest

from services.contracts.builds.build_plan import (
    BuildPlan,
    RebuildRequest,
    SkippedKey,
    TaskEnd,
    TaskStart,
)
from services.contracts.hardware.node_class import NodeClass
from services.contracts.registry.builds import BuildRegistry
from services.contracts.store.object_store import open_store
from services.contracts.text.moments import timestamp, utc_now

HERE, THERE = NodeClass(generation="cpu-x86_64-v3"), NodeClass(generation="cuda-sm90")


@pytest.fixture
def builds(tmp_path: Path) -> BuildRegistry:
    return BuildRegistry(open_store(str(tmp_path / "store")))


def plan(node_class: NodeClass = HERE, at: str = "1", reason: str = "") -> BuildPlan:
    skipped = (SkippedKey(kind="tensorrt", precision="fp32", reason=reason),) if reason else ()
    return BuildPlan(model="m", version=1, node_class=node_class, skipped=skipped, created_at=at)


class TestPlans:
    def test_the_newest_of_each_class_counts_oldest_first(self, builds: BuildRegistry) -> None:
        assert builds.build_plans("m", 1) == []
        assert builds.build_plan("m", 1, HERE) is None
        for each in (plan(at="1"), plan(THERE, at="2"), plan(at="3", reason="no GPU")):
            assert builds.write_plan(each)
        assert [p.created_at for p in builds.build_plans("m", 1)] == ["2", "3"]
        newest = builds.build_plan("m", 1, HERE)
        assert newest is not None
        assert newest.skipped[0].reason == "no GPU"
        assert builds.build_plans("m", 2) == []

    def test_one_that_says_nothing_new_is_not_kept(self, builds: BuildRegistry) -> None:
        builds.write_plan(plan(at="1"))
        assert not builds.write_plan(plan(at="2"))
        assert [p.created_at for p in builds.build_plans("m", 1)] == ["1"]


def test_rebuild_requests_are_numbered_by_model(builds: BuildRegistry) -> None:
    for who in ("ann", "bob"):
        request = RebuildRequest(model="m", version=1, who=who, created_at="1")
        number = builds.request_rebuild(request)
    assert number == 2
    assert [request.who for request in builds.rebuild_requests("m")] == ["ann", "bob"]
    assert builds.rebuild_requests("other") == []


def test_of_a_task_the_first_account_stays(builds: BuildRegistry) -> None:
    assert builds.task_start("t") is None
    assert builds.task_end("t") is None
    for at in ("1", "2"):
        start = TaskStart(
            name="t", model="m", version=1, node_class=HERE, is_anywhere=False, created_at=at
        )
        builds.start_task(start)
        builds.end_task(TaskEnd(name="t", detail=at, created_at=at))
    kept, ended = builds.task_start("t"), builds.task_end("t")
    assert kept is not None
    assert ended is not None
    assert (kept.created_at, ended.detail) == ("1", "1")


def test_times_are_written_in_milliseconds_with_their_zone() -> None:
    text = timestamp(utc_now())
    assert len(text) == len("2026-01-01T00:00:00.000+00:00")
    assert text.endswith("+00:00")
