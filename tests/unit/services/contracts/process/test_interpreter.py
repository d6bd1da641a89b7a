"""A serving process: what lives is passed by, new cycles still go, threads switch sooner."""

import gc
import subprocess
import sys
import weakref

import pytest

from services.contracts.process.interpreter import (
    SWITCH_INTERVAL_S,
    YOUNG_THRESHOLD,
    tune_for_serving,
)


class _Node:
    def __init__(self) -> None:
        self.me = self


def test_new_cycles_are_still_collected_and_old_objects_are_frozen() -> None:
    before, interval_s = gc.get_threshold(), sys.getswitchinterval()
    try:
        tune_for_serving()
        assert gc.get_threshold() == (YOUNG_THRESHOLD, *before[1:])
        assert gc.get_freeze_count() > 0
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
        gone = weakref.ref(_Node())
        held = [[] for _ in range(2 * YOUNG_THRESHOLD)]
        assert gone() is None, f"{len(held)} new objects made no collection"
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
        sys.setswitchinterval(interval_s)


def test_it_needs_nothing_but_python() -> None:
    code = "from services.contracts.process.interpreter import tune_for_serving; tune_for_serving()"
    subprocess.run([sys.executable, "-c", code], check=True)
