"""The collector of a serving process: what lives is passed by, new cycles still go."""

import gc
import subprocess
import sys
import weakref

from services.contracts.collector import YOUNG_THRESHOLD, calm_collector


class _Node:
    def __init__(self) -> None:
        self.me = self


def test_new_cycles_are_still_collected_and_old_objects_are_frozen() -> None:
    before = gc.get_threshold()
    try:
        calm_collector()
        assert gc.get_threshold() == (YOUNG_THRESHOLD, *before[1:])
        assert gc.get_freeze_count() > 0
        gone = weakref.ref(_Node())
        held = [[] for _ in range(2 * YOUNG_THRESHOLD)]
        assert gone() is None
        assert len(held) == 2 * YOUNG_THRESHOLD
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_it_needs_nothing_but_python() -> None:
    code = "from services.contracts.collector import calm_collector; calm_collector()"
    subprocess.run([sys.executable, "-c", code], check=True)
