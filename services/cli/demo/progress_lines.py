"""What happens, as it happens: lines with the seconds since the start, above one of figures."""

import time

import psutil

from services.cli.output.progress import StepLine


def started_at() -> float:
    """The process's own start, in seconds since the epoch: imports have taken a moment by now."""
    return psutil.Process().create_time()


class ProgressLines:
    """The demo's step on standard error."""

    def __init__(self, line: StepLine) -> None:
        self._line = line
        self._started_at = started_at()

    def event(self, words: str, at: float | None = None) -> float:
        """Something happened.

        Args:
            words: one line.
            at: when, in seconds since the epoch; None is now.

        Returns:
            How many seconds after the start that was.
        """
        since_s = (time.time() if at is None else at) - self._started_at
        self._line.keep(f"[{since_s:6.1f} s] {words}")
        return since_s

    def show(self, words: str) -> None:
        """How it goes now, or what is awaited; a log has it once nothing has happened for long."""
        self._line.wait(words)
