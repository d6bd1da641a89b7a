"""Processors that a process may use, by files as the kernel has them."""

import os
from pathlib import Path

import pytest

from services.contracts.process.processors import usable_processors

HERE = float(len(os.sched_getaffinity(0)))


def test_without_a_control_group_it_is_the_affinity(tmp_path: Path) -> None:
    assert usable_processors(tmp_path) == HERE


@pytest.mark.parametrize(
    ("text", "wanted"), [("50000 100000", 0.5), ("max 100000", HERE), ("900000000 100000", HERE)]
)
def test_a_quota_of_version_2_counts_where_it_is_less(
    tmp_path: Path, text: str, wanted: float
) -> None:
    (tmp_path / "cpu.max").write_text(f"{text}\n")
    assert usable_processors(tmp_path) == wanted


@pytest.mark.parametrize(("quota", "wanted"), [("25000", 0.25), ("-1", HERE)])
def test_a_quota_of_version_1(tmp_path: Path, quota: str, wanted: float) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_processors(tmp_path) == wanted
