"""A C++ compiler that crashes, hangs or eats all memory ends in a record that says so."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from compiler_worker import host_memory
from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.work_folder import work_folder
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import ModelVersion
from tests.integration.compiler.conftest import with_settings

REAL = shutil.which("g++") or ""
# It holds what it took until somebody ends it.
EATER = "import signal; held = bytearray(b'x') * (3 << 30); signal.pause()"
pytestmark = [pytest.mark.skipif(not REAL, reason="no g++ on PATH"), pytest.mark.slow]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is there that was compiled before."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)


def use_compiler(misdeed: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a compiler found first that does this in place of making an object."""
    place = folder / "bin"
    place.mkdir()
    (place / "g++").write_text(
        f'#!/bin/sh\ncase " $* " in *" -c "*) {misdeed} ;; esac\nexec {REAL} "$@"\n'
    )
    (place / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")


def attempt(worker: WorkerContext, version: ModelVersion) -> BuildRecord:
    """The one attempt; nothing of it is left, and the next worker may try."""
    # Of other tests in this process: a server that outlives its test's module.
    before = set(psutil.Process().children(recursive=True))
    (record,) = build_model(version, Wanted(kinds=(EngineKind.INDUCTOR,)), worker).records
    digest = record.key.digest()
    assert record.outcome is BuildOutcome.FAILED
    assert record.stage == "build"
    assert worker.registry.build_records(digest) == [record]
    assert worker.registry.lease(digest).is_free
    assert worker.registry.engines() == []
    assert set(psutil.Process().children(recursive=True)) <= before
    return record


def test_a_compiler_that_crashes_is_recorded_with_its_log(
    worker: WorkerContext, version: ModelVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    misdeed = "echo 'internal compiler error: in fold' >&2; kill -SEGV $$"
    use_compiler(misdeed, tmp_path, monkeypatch)
    record = attempt(worker, version)
    assert "Inductor failed" in record.reason
    assert any("internal compiler error: in fold" in line for line in record.log_tail)


def test_a_compiler_that_hangs_is_ended_with_its_child(
    worker: WorkerContext, version: ModelVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler("sleep 3600", tmp_path, monkeypatch)
    record = attempt(with_settings(worker, build_time_limit_s=40.0), version)
    assert "no result within 40 s, in stage 'build'" in record.reason
    # Where it was: in what waits for the compiler.
    assert any("in run" in line and "subprocess.py" in line for line in record.log_tail)


def test_a_compiler_that_eats_memory_is_ended_with_its_child(
    worker: WorkerContext, version: ModelVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(f'exec {sys.executable} -c "{EATER}"', tmp_path, monkeypatch)
    record = attempt(with_settings(worker, memory_limit_gib=2.0), version)
    assert "of memory in use in stage 'build', 2.00 allowed" in record.reason
    assert "SMELT_MEMORY_LIMIT_GIB" in record.reason
    assert record.is_counted


def test_a_build_that_is_ended_beside_another_one_is_not_at_fault(
    worker: WorkerContext, version: ModelVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(f'exec {sys.executable} -c "{EATER}"', tmp_path, monkeypatch)
    for name, text in (("memory.max", f"{4 << 30}"), ("memory.current", f"{3 << 30}")):
        (tmp_path / name).write_text(text)
    (tmp_path / "memory.stat").write_text("inactive_file 0")
    group = replace(host_memory.CONTROL_GROUPS[0], folder=tmp_path)
    monkeypatch.setattr(host_memory, "CONTROL_GROUPS", (group,))
    with work_folder(worker.settings.cache_dir.absolute() / "work", "0" * 12 + "-"):
        record = attempt(worker, version)
    assert "allowed to one of 2 builds" in record.reason
    assert not record.is_counted
