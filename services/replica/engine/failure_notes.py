"""Engines that failed on this machine, remembered across processes for a while.

A replica that was replaced because of its engine would otherwise take the same one again, with
no engine before it to return to, and be replaced again.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from services.contracts.model.document import Document
from services.contracts.process.backoff import wait_after

logger = logging.getLogger(__name__)

# What is broken costs a try each time.
_FIRST_WAIT_S = 600.0
_MAX_WAIT_S = 24 * 3600.0


class FailureNote(Document):
    """How an engine failed here the last time.

    Attributes:
        num_failures: those within the time of an earlier note count as one with it.
        until_s: seconds since 1970; afterwards the engine may be tried again.
    """

    reason: str
    num_failures: int
    until_s: float


class FailureNotes:
    """Notes in a folder that the replicas of this machine share.

    Attributes:
        folder: None where nothing is noted.
    """

    def __init__(self, folder: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """Take a folder, or None to note nothing; `clock` gives seconds since 1970."""
        self.folder = folder
        self._clock = clock

    def add(self, name: str, reason: str) -> None:
        """Note a failure; several in one time are one."""
        if self.folder is None:
            return
        known = self._read(name)
        is_new = known is None or known.until_s <= self._clock()
        num_failures = (known.num_failures if known else 0) + is_new
        wait_s = wait_after(num_failures, first_s=_FIRST_WAIT_S, most_s=_MAX_WAIT_S)
        until_s = self._clock() + wait_s if known is None or is_new else known.until_s
        note = FailureNote(reason=reason, num_failures=num_failures, until_s=until_s)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Not renamed into place: a note that is read half written is taken for none.
            (self.folder / name).write_bytes(note.canonical_json())
        except OSError as error:  # a full disk must not keep the next engine from serving
            logger.warning("engine failure not recorded: %s", error)

    def reason(self, name: str) -> str:
        """Why an engine is not to be tried now; "" when it may be."""
        note = self._read(name)
        if note is None or note.until_s <= self._clock():
            return ""
        until = datetime.fromtimestamp(note.until_s, UTC).isoformat(timespec="seconds")
        return f"{note.reason} (noted on this machine; tried again after {until})"

    def _read(self, name: str) -> FailureNote | None:
        if self.folder is None:
            return None
        try:
            return FailureNote.from_json((self.folder / name).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            logger.warning("record of an engine failure cannot be read: %s", error)
            return None
