"""What could not be had or failed here, each remembered for as long as that is likely to be true.

What a store or this machine could not give, memory and time too, is tried again by this process,
and so is the fallback, whatever it failed on; what a library refused or a request failed on never
again by this one, and by others of this machine later.
"""

import logging
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from services.contracts.errors import (
    CheckUnfinishedError,
    EngineError,
    NotFoundError,
    StoreError,
)
from services.contracts.model.manifest import PublishedEngine
from services.contracts.process.backoff import wait_after
from services.contracts.process.disk_room import is_of_full_disk
from services.replica.engine.failure_notes import FailureNotes

logger = logging.getLogger(__name__)

# A store may be whole again later, and a disk or a process have room again (OSError, or what a
# library makes of it); an engine that fails stays failed.
_PASSING_ERRORS = (StoreError, NotFoundError, OSError, CheckUnfinishedError)
# Without a wait each look at the store would fetch the same files again, in every replica.
FIRST_WAIT_S = 60.0
# A check that hangs keeps others of this host waiting for minutes.
FIRST_CHECK_WAIT_S = 600.0
# The longest wait is an hour then, or ten.
_MOST_FIRST_WAITS = 60
# Of torch and CUDA, their libraries, ONNX Runtime, XLA and C++.
_WORDS_OF_MEMORY = re.compile(
    "out.?of.?(device.)?memory|MemoryError|not enough memory|bad_alloc|RESOURCE_EXHAUSTED|"
    "(failed to|can.?t) allocate|ALLOC(ATION)?_FAILED",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """What happened last, how often in a row, and until when the engine is not tried."""

    reason: str
    num_failures: int = 1
    until_s: float = math.inf

    @property
    def is_lasting(self) -> bool:
        """Whether this process never tries the engine again."""
        return self.until_s == math.inf


class EngineFailures:
    """The failures of one model's engines on one device; the fallback has the digest "".

    Attributes:
        is_fallback_wrong: it was refuted here: slower engines are better than what is in its place.
    """

    def __init__(
        self,
        name: Callable[[PublishedEngine], str],
        notes: FailureNotes,
        clock: Callable[[], float],
    ) -> None:
        """Begin with what other processes noted.

        Args:
            name: of an engine in `notes`: the same engine has another one on another device.
            notes: failures that all replicas of this machine share.
            clock: seconds of a monotonic clock, which waits are counted in.
        """
        self._name = name
        self._notes = notes
        self._clock = clock
        # An engine that failed here once is not tried again in this process: failed loads
        # may leave device memory behind, and nothing that could mend it changes under it.
        self._failures: dict[str, _Failure] = {}
        self._names: dict[str, str] = {}
        self.is_fallback_wrong = False

    def known(
        self, engines: Iterable[PublishedEngine], current_digest: str | None
    ) -> dict[str, str]:
        """By digest, why engines are not tried now.

        Of the one that serves here neither notes of other processes count nor that it was out of
        reach once: only that it failed in service.
        """
        now_s = self._clock()
        self._names = {engine.digest: self._name(engine) for engine in engines}
        noted = {digest: self._notes.reason(name) for digest, name in self._names.items()}
        failed = {
            digest: known.reason
            # A copy: the thread of a fallback that is being compiled adds to it.
            for digest, known in list(self._failures.items())
            if now_s < known.until_s and (digest != current_digest or known.is_lasting)
        }
        return {d: why for d, why in noted.items() if why and d != current_digest} | failed

    def add(self, engine: PublishedEngine, error: Exception) -> str:
        """Note that an engine could not be had; returns the words."""
        is_passing = isinstance(error, _PASSING_ERRORS) or _is_of_memory(error)
        if is_passing or is_of_full_disk(error, self._notes.folder):
            return self.postpone(engine.digest, error)
        words = f"{type(error).__name__}: {error}"
        logger.error("engine %s does not load here; trying the next", engine.digest, exc_info=error)
        self._failures[engine.digest] = _Failure(reason=words)
        # The library's verdict, that is.
        if isinstance(error, EngineError):
            self._notes.add(self._name(engine), words)
        return words

    def postpone(self, digest: str, error: Exception) -> str:
        """Have an engine wait for twice as long as the last time; returns the words."""
        known = self._failures.get(digest)
        num_failures = known.num_failures + 1 if known else 1
        is_check = isinstance(error, CheckUnfinishedError)
        first_s = FIRST_CHECK_WAIT_S if is_check else FIRST_WAIT_S
        most_s = _MOST_FIRST_WAITS * first_s
        wait_s = wait_after(num_failures, first_s=first_s, most_s=most_s)
        words = f"{type(error).__name__}: {error} (tried again after {wait_s:.0f} s)"
        logger.error(
            "engine %s could not be fetched or loaded, trying the next: %s",
            digest or "(fallback)",
            words,
        )
        until_s = self._clock() + wait_s
        self._failures[digest] = _Failure(reason=words, num_failures=num_failures, until_s=until_s)
        return words

    def lasting(self, digest: str) -> str:
        """Why this process never tries an engine again; "" when it may."""
        known = self._failures.get(digest)
        return known.reason if known and known.is_lasting else ""

    def loaded(self, digest: str) -> None:
        """An engine, or the fallback, could be had: what kept it away is over."""
        self._failures.pop(digest, None)

    def mark_failed(self, digest: str, words: str) -> None:
        """It hangs as it loads or failed in service: not tried again here, by others for a while.

        What fails in service fails requests first, and a new process has no engine before it.
        """
        self._failures[digest] = _Failure(reason=words)
        # The fallback has no name, nor has an engine that is published no more.
        if name := self._names.get(digest):
            self._notes.add(name, words)


def _is_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised for, is of a lack of memory, on any device."""
    while error is not None:
        if _WORDS_OF_MEMORY.search(repr(error)):
            return True
        error = error.__cause__
    return False
