"""Files that are read again when they were changed: certificates and secrets are rotated."""

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from services.contracts.errors import InvalidRequestError

_Stamp = tuple[int, int, int]


class WatchedFile:
    """Detects that a file is another one than when it was last read.

    Links are followed: Kubernetes rotates a mounted Secret by turning a link.
    """

    def __init__(
        self, path: Path, period_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Look at the file from now on.

        Args:
            path: of the file, or of a link to it.
            period_s: least time between two looks: a request must not cost a system call.
            clock: seconds.
        """
        self.path = path
        self._period_s = period_s
        self._clock = clock
        self._seen: _Stamp | None = None
        self._look_after_s = clock()

    def read(self) -> bytes:
        """Its bytes; changes from here on count. Raises OSError."""
        # Until it is read it counts as changed: what kept it from being read, as a right that is
        # reused, need not show as a change.
        self.forget()
        # The stamp first: what is written in between shows as a change, and is read again.
        stamp = self._stamp()
        content = self.path.read_bytes()
        self._seen = stamp
        return content

    def forget(self) -> None:
        """Take what was read for nothing: the file counts as changed until it is read again."""
        self._seen = None

    def has_changed(self) -> bool:
        """Whether it is another one now; False while it cannot be seen."""
        if not self._may_look():
            return False
        try:
            return self._stamp() != self._seen
        except OSError:
            return False

    def _may_look(self) -> bool:
        now_s = self._clock()
        if now_s < self._look_after_s:
            return False
        self._look_after_s = now_s + self._period_s
        return True

    def _stamp(self) -> _Stamp:
        status = self.path.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size


class Complaint:
    """Logs what is wrong with a file once, though it is read again and again."""

    def __init__(self, log: Callable[[str], None]) -> None:
        """`log` writes it to a log."""
        self._log = log
        self._last_logged = ""

    def make(self, text: str) -> None:
        """Log it, unless it was the last message."""
        if text != self._last_logged:
            self._log(text)
        self._last_logged = text

    def withdraw(self) -> None:
        """All is well again: the next message is logged, whatever it is."""
        self._last_logged = ""


class WatchedFiles:
    """Files that are of use together alone, as a certificate and its key.

    Attributes:
        all: in the order of their paths.
    """

    def __init__(
        self, paths: Iterable[Path], period_s: float, what: str, logger: logging.Logger
    ) -> None:
        """Look at the files from now on.

        Args:
            paths: of the files, in the order of `all`.
            period_s: least time between two looks at a file.
            what: is in them, in the words of the log.
            logger: takes the warning when a new version of them is of no use.
        """
        self.all = tuple(WatchedFile(path, period_s) for path in paths)
        self._what = what
        self._logger = logger
        self._complaint = Complaint(partial(logger.warning, "%s stays the previous one: %s", what))

    def renew(self, take: Callable[[], None]) -> None:
        """Let `take` read them all if one was changed.

        When it raises InvalidRequestError, that is logged, and tried again later.
        """
        if not any(file.has_changed() for file in self.all):
            return
        try:
            take()
        except InvalidRequestError as error:
            # Half of a rotation, or no descriptor was left: all are tried again after a period,
            # as the other half need not show as a change.
            for file in self.all:
                file.forget()
            self._complaint.make(str(error))
        else:
            self._complaint.withdraw()
            self._logger.info("%s was read again", self._what)
