"""The memory limit of a build by default: most of what others leave, in fair parts."""

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from compiler_worker import host_memory as module
from compiler_worker.host_memory import CONTROL_GROUPS, ControlGroup, HostMemory, host_memory
from compiler_worker.settings import settings_from_environment

GIB = 2**30


@pytest.fixture(params=CONTROL_GROUPS, ids=lambda group: group.limit)
def container(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ControlGroup:
    """A container of one generation of control groups, in files without any number so far."""
    group = replace(request.param, folder=tmp_path)
    monkeypatch.setattr(module, "CONTROL_GROUPS", (group,))
    return group


def fill(group: ControlGroup, limit: str, used: int, cached: int = 0) -> None:
    """Have the kernel say so."""
    (group.folder / group.limit).write_text(f"{limit}\n")
    (group.folder / group.usage).write_text(f"{used}\n")
    stat = f"anon 1\n{group.cached} {cached}\n{group.cached}_other 7\n"
    (group.folder / "memory.stat").write_text(stat)


def test_without_a_container_it_is_the_hosts(container: ControlGroup) -> None:
    found, host = host_memory(), psutil.virtual_memory()
    assert found.total_bytes == host.total
    assert found.available_bytes == pytest.approx(host.available, rel=0.3)


@pytest.mark.parametrize("said", ["max", "", str(2**63 - 4096)])
def test_a_container_without_a_limit_changes_nothing(container: ControlGroup, said: str) -> None:
    before = host_memory().total_bytes
    fill(container, said, used=GIB)
    found = host_memory()
    assert found.total_bytes == before
    assert found.available_bytes > 0


def test_what_a_container_uses_is_not_there_but_the_cache_of_files_is(
    container: ControlGroup,
) -> None:
    fill(container, str(GIB), used=GIB // 2, cached=GIB // 4)
    assert host_memory() == HostMemory(total_bytes=GIB, available_bytes=GIB * 3 // 4)


def test_a_full_container_has_nothing_left(container: ControlGroup) -> None:
    fill(container, str(GIB), used=GIB + 4096)
    assert host_memory() == HostMemory(total_bytes=GIB, available_bytes=0)


class TestAllowance:
    def test_a_lone_build_has_most_of_what_others_leave_whatever_it_holds(self) -> None:
        for used in (0, 3 * GIB):
            host = HostMemory(total_bytes=10 * GIB, available_bytes=8 * GIB - used)
            assert host.allowance(used, 1).num_bytes == int(8 * GIB * 0.8)

    @pytest.mark.parametrize("num_builds", [1, 2, 3, 8])
    def test_builds_that_start_together_end_before_they_hold_more_than_most_of_it(
        self, num_builds: int
    ) -> None:
        """Each grows to its limit in turns: all have the same then, and others their part."""
        used, left, step = [0] * num_builds, 10 * GIB, GIB // 100
        is_ended = False
        while not is_ended:
            for number in range(num_builds):
                used[number] += step
                left -= step
                host = HostMemory(total_bytes=10 * GIB, available_bytes=left)
                is_ended |= used[number] > host.allowance(used[number], num_builds).num_bytes
        assert sum(used) == pytest.approx(8 * GIB, rel=0.05)

    def test_beside_small_ones_a_build_has_more_than_its_part_by_number(self) -> None:
        host = HostMemory(total_bytes=10 * GIB, available_bytes=10 * GIB)
        assert host.allowance(0, 2).num_bytes > 6 * GIB

    def test_the_number_of_builds_ends_none_while_the_host_has_memory_to_spare(self) -> None:
        host = HostMemory(total_bytes=64 * GIB, available_bytes=36 * GIB)
        assert host.allowance(24 * GIB, 8).num_bytes > 24 * GIB
        tight = HostMemory(total_bytes=64 * GIB, available_bytes=12 * GIB)
        assert tight.allowance(24 * GIB, 8).num_bytes < 24 * GIB

    @pytest.mark.parametrize(
        ("available_gib", "num_builds", "is_temporary"),
        [(9, 1, False), (6, 1, True), (9, 2, True)],
    )
    def test_it_is_temporary_while_others_hold_much_or_build_too(
        self, available_gib: int, num_builds: int, *, is_temporary: bool
    ) -> None:
        host = HostMemory(total_bytes=10 * GIB, available_bytes=available_gib * GIB)
        assert host.allowance(0, num_builds).is_temporary == is_temporary


def test_what_a_person_says_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMELT_MEMORY_LIMIT_GIB", raising=False)
    assert settings_from_environment().memory_limit_bytes is None
    monkeypatch.setenv("SMELT_MEMORY_LIMIT_GIB", "3.5")
    assert settings_from_environment().memory_limit_bytes == int(3.5 * GIB)
