"""What could not be had or failed here, each remembered for as long as that is likely to be true.

What a store or this machine could not give is tried again soon by this process; what a library
refused or a request failed on never again by this one, and by others of this machine later.
"""

import logging
from collections.abc import Callable, Iterable

from services.contracts.errors import EngineError, NotFoundError, StoreError
from services.contracts.manifest import PublishedEngine
from services.replica.failure_notes import FailureNotes
from services.replica.passing_failures import PassingFailures

logger = logging.getLogger(__name__)

# A store may be whole again later, and a disk or a process have room again (OSError); an engine
# that fails stays failed.
_PASSING_ERRORS = (StoreError, NotFoundError, OSError)


class EngineFailures:
    """The failures of one model's engines on one device.

    Attributes:
        is_fallback_missing: no fallback could be loaded, or it is wrong, where slower engines
            could serve.
    """

    def __init__(
        self,
        name: Callable[[PublishedEngine], str],
        notes: FailureNotes,
        clock: Callable[[], float],
    ) -> None:
        """Begin with what other processes noted; `name` is an engine's name in `notes`."""
        self.is_fallback_missing = False
        self._name, self._notes = name, notes
        # An engine that failed here once is not tried again in this process: failed loads
        # may leave device memory behind, and nothing that could mend it changes under it.
        self._failed: dict[str, str] = {}
        self._passing = PassingFailures(clock)
        self._loaded: dict[str, PublishedEngine] = {}

    def known(
        self, engines: Iterable[PublishedEngine], current_digest: str | None
    ) -> dict[str, str]:
        """By digest, why engines are not tried now.

        The one that serves here needs no other's opinion, and nothing of what was once out of
        reach: only that it failed in service speaks against it.
        """
        noted = {each.digest: self._notes.reason(self._name(each)) for each in engines}
        lasting = {digest: reason for digest, reason in noted.items() if reason}
        others = {**lasting, **self._passing.waiting()}
        others.pop(current_digest or "", None)
        return {**others, **self._failed}

    def add(self, engine: PublishedEngine, error: Exception) -> str:
        """Note that an engine could not be had; returns the words."""
        words = f"{type(error).__name__}: {error}"
        if isinstance(error, _PASSING_ERRORS):
            words = self._passing.add(engine.digest, words)
            logger.error("engine %s cannot be had now, next: %s", engine.digest, words)
            return words
        logger.error("engine %s does not load here; next", engine.digest, exc_info=error)
        self._failed[engine.digest] = words
        # The library's verdict, that is.
        if isinstance(error, EngineError):
            self._notes.add(self._name(engine), words)
        return words

    def loaded(self, engine: PublishedEngine) -> None:
        """An engine could be had: what kept it away is over."""
        self._loaded[engine.digest] = engine
        self._passing.forget(engine.digest)

    def failed_in_service(self, digest: str, words: str) -> None:
        """One that was loaded failed: not chosen again here, in other processes for a while.

        What fails in service fails requests first, and a new process has no engine before it.
        """
        self._failed[digest] = words
        if engine := self._loaded.get(digest):
            self._notes.add(self._name(engine), words)
