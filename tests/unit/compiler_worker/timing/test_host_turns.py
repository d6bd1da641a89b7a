"""Builds share a host; a timing has exclusive use of it."""

import fcntl
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from compiler_worker.timing.host_turns import alone, beside_others

Turn = Callable[[Path], AbstractContextManager[None]]


class Worker:
    """A thread that takes a turn, notes that it has it, and keeps it until `end`."""

    def __init__(self, turn: Turn, folder: Path, name: str, order: list[str]) -> None:
        self._turn, self._folder, self._name, self._order = turn, folder, name, order
        self.has_turn, self._may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        with self._turn(self._folder):
            self._order.append(self._name)
            self.has_turn.set()
            self._may_end.wait()

    def end(self) -> None:
        self._may_end.set()
        self._thread.join()


def is_gate_free(folder: Path) -> bool:
    with (folder / "host.gate").open("ab") as gate:
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_builds_work_beside_each_other(tmp_path: Path) -> None:
    order: list[str] = []
    workers = [Worker(beside_others, tmp_path, name, order) for name in "ab"]
    for worker in workers:
        worker.has_turn.wait()
    for worker in workers:
        worker.end()


def test_a_timing_waits_for_those_that_work_and_those_that_come_later_wait_for_it(
    tmp_path: Path,
) -> None:
    order: list[str] = []
    working = Worker(beside_others, tmp_path, "working", order)
    working.has_turn.wait()
    timing = Worker(alone, tmp_path, "timing", order)
    while is_gate_free(tmp_path):
        pass
    later = Worker(beside_others, tmp_path, "later", order)
    assert not timing.has_turn.is_set()
    working.end()
    timing.has_turn.wait()
    assert not later.has_turn.is_set()
    timing.end()
    later.has_turn.wait()
    later.end()
    assert order == ["working", "timing", "later"]


def test_a_turn_ends_with_a_fault(tmp_path: Path) -> None:
    try:
        with alone(tmp_path / "made"):
            raise ValueError
    except ValueError:
        pass
    with alone(tmp_path / "made"):
        pass
