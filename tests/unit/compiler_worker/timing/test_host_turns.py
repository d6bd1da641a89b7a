"""Builds share a host; a timing has exclusive use of it."""

import fcntl
import io
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from compiler_worker.children.child import Events
from compiler_worker.children.requests import ChildEvent, Stage
from compiler_worker.timing.host_turns import alone, beside_others

# Long enough for any loaded machine; reached only when a test fails.
LIMIT_S = 60.0
Turn = Callable[[Path, Events], AbstractContextManager[None]]


class Worker:
    """A thread that takes a turn, notes that it has it, and keeps it until `end`."""

    def __init__(self, turn: Turn, folder: Path, name: str, order: list[str]) -> None:
        self._turn, self._folder, self._name, self._order = turn, folder, name, order
        self._said = io.StringIO()
        self.events = Events(self._said)
        self.has_turn, self._may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        with self._turn(self._folder, self.events), self.events.stage(Stage.BUILD):
            self._order.append(self._name)
            self.has_turn.set()
            self._may_end.wait(LIMIT_S)

    def end(self) -> None:
        self._may_end.set()
        self._thread.join()

    def told(self) -> list[ChildEvent]:
        """What it said so far."""
        return [ChildEvent.from_json(line.encode()) for line in self._said.getvalue().splitlines()]

    def stages(self) -> list[Stage | None]:
        return [event.stage or event.ended_stage for event in self.told()]


def until(is_so: Callable[[], bool]) -> None:
    """Locks of another thread can only be looked at, again and again."""
    ends_at = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < ends_at


def is_gate_free(folder: Path) -> bool:
    with (folder / "host.gate").open("ab") as gate:
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_builds_work_beside_each_other(tmp_path: Path) -> None:
    order: list[str] = []
    workers: list[Worker] = []
    for name in "ab":
        workers.append(Worker(beside_others, tmp_path, name, order))
        assert workers[-1].has_turn.wait(LIMIT_S)
    for worker in workers:
        worker.end()
        assert worker.stages() == [Stage.BUILD, Stage.BUILD]
        assert worker.events.waited_s == 0


def test_a_timing_waits_for_those_that_work_and_those_that_come_later_wait_for_it(
    tmp_path: Path,
) -> None:
    order: list[str] = []
    working = Worker(beside_others, tmp_path, "working", order)
    assert working.has_turn.wait(LIMIT_S)
    timing = Worker(alone, tmp_path, "timing", order)
    until(lambda: not is_gate_free(tmp_path))
    later = Worker(beside_others, tmp_path, "later", order)
    until(lambda: bool(later.told()))
    assert not timing.has_turn.is_set()
    working.end()
    assert timing.has_turn.wait(LIMIT_S)
    assert not later.has_turn.is_set()
    timing.end()
    assert later.has_turn.wait(LIMIT_S)
    later.end()
    assert order == ["working", "timing", "later"]
    for waited in (timing, later):
        # Before its stage, which is so timed without the wait.
        assert waited.stages() == [Stage.WAIT, Stage.WAIT, Stage.BUILD, Stage.BUILD]
        assert waited.told()[0].line.startswith("until ")
        assert waited.events.waited_s == waited.told()[1].duration_s > 0


def test_a_turn_ends_with_a_fault(tmp_path: Path) -> None:
    events = Events(io.StringIO())
    try:
        with alone(tmp_path / "made", events):
            raise ValueError
    except ValueError:
        pass
    with alone(tmp_path / "made", events):
        pass
