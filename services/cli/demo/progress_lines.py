"""What happens, as it happens: lines with the seconds since the start, and one of figures."""

import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import psutil
from rich.status import Status
from rich.text import Text

from services.cli.output.progress import SILENT_S, beating
from services.cli.output.show import error_console, print_remark

# As wide as `[ 123.4 s] `, so that figures stand below words in a log.
_INDENT = " " * 11


class ProgressLines:
    """Writes to standard error; use it as a context manager.

    On a terminal the figures are one line that is rewritten; a log has them below each event.
    """

    def __init__(self, *, is_quiet: bool) -> None:
        """`is_quiet` writes nothing."""
        self._is_quiet = is_quiet
        # The process's own start, and not this line's: imports have taken a moment by now.
        self._started_at = psutil.Process().create_time()
        self._figures = self._shown = self._awaited = ""
        self._logged_at = time.time()
        self._status: Status | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        """Begin the rewritten line, where there can be one."""
        if error_console().is_terminal and not self._is_quiet:
            self._status = error_console().status("")
            self._status.start()
        self._held.enter_context(beating(self.say_still))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        """End the rewritten line."""
        self._held.close()
        if self._status:
            self._status.stop()

    def event(self, words: str, at: float | None = None) -> float:
        """Something happened.

        Args:
            words: one line.
            at: when, in seconds since the epoch; None is now.

        Returns:
            How many seconds after the start that was.
        """
        since_s = (time.time() if at is None else at) - self._started_at
        if self._is_quiet:
            return since_s
        print_remark(f"[{since_s:6.1f} s] {words}")
        self._logged_at = time.time()
        if self._status is None and self._figures != self._shown:
            error_console().print(f"{_INDENT}{self._figures}", markup=False, soft_wrap=True)
            self._shown = self._figures
        return since_s

    def figures(self, words: str) -> None:
        """How it goes now."""
        self._figures = words
        self.waiting(words)

    def waiting(self, words: str) -> None:
        """What is awaited; a log has it only once nothing has happened for long."""
        self._awaited = words
        if self._status:
            self._status.update(_Since(words, self._started_at))

    def say_still(self) -> None:
        """In a log that has been silent for long, what is awaited."""
        if self._status is None and time.time() - self._logged_at >= SILENT_S:
            self.event(f"still {self._awaited or 'at it'}")


class _Since:
    """Words behind the seconds since the start, as they are whenever the line is drawn."""

    def __init__(self, words: str, started_at: float) -> None:
        self._words = words
        self._started_at = started_at

    def __rich__(self) -> Text:
        return Text(f"[{time.time() - self._started_at:6.1f} s] {self._words}")
