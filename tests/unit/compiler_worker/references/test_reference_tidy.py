"""The kept references stay within bounds: the least recently read go first."""

import os
import time
from pathlib import Path

import numpy as np

from compiler_worker.references.reference_cache import CachedModel, reference_folder, tidy
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.kserve.tensors import Array
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.unit.services.controller import build_world as world

DAY_S = 24 * 3600.0


class Echo:
    """A model whose answer is its input."""

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        return {"y": inputs["x"]}


def kept(folder: Path, name: str, *, age_s: float, num_bytes: int = 10) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(b"x" * num_bytes)
    read_s = time.time() - age_s
    os.utime(path, (read_s, read_s))
    return path


def test_what_was_not_read_for_long_goes(tmp_path: Path) -> None:
    old, new = kept(tmp_path, "a.npz", age_s=31 * DAY_S), kept(tmp_path, "b.npz", age_s=29 * DAY_S)
    tidy(tmp_path)
    assert list(tmp_path.iterdir()) == [new]
    assert not old.exists()


def test_the_oldest_go_while_there_is_too_much(tmp_path: Path) -> None:
    paths = [kept(tmp_path, f"{age}.npz", age_s=age * 100.0) for age in range(5)]
    tidy(tmp_path, max_bytes=30)
    assert sorted(tmp_path.iterdir()) == paths[:3]


def test_an_entry_that_is_read_counts_as_new(tmp_path: Path) -> None:
    inputs = {"x": np.ones(3)}
    CachedModel("m", Echo, tmp_path).run(inputs)
    (entry,) = tmp_path.iterdir()
    os.utime(entry, (0, 0))
    CachedModel("m", Echo, tmp_path).run(inputs)
    tidy(tmp_path)
    assert entry.exists()


def test_what_is_not_ours_and_a_folder_that_is_not_there_are_left(tmp_path: Path) -> None:
    note = kept(tmp_path, "note.txt", age_s=99 * DAY_S)
    tidy(tmp_path)
    tidy(tmp_path / "none")
    assert note.exists()


def test_each_attempt_begins_with_it(tmp_path: Path) -> None:
    old = kept(reference_folder(tmp_path), "a.npz", age_s=31 * DAY_S)
    worker = WorkerContext(
        registry=Registry(open_store("memory:"), tmp_path),
        settings=CompilerSettings(cache_dir=tmp_path),
        devices={},
    )
    with worker.work_folder(world.KEYS[0]):
        assert not old.exists()
