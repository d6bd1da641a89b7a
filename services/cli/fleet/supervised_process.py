"""A child process of `smelt up` that is started again whenever it ends.

What else runs does not wait for that, and does not end with it: gateways go on with replicas
they know while a controller cannot start.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.cli.fleet.child_process import ChildProcess, ProcessSpec
from services.contracts.errors import NotReadyError
from services.contracts.process.backoff import Backoff

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
# One that ran for less is not started again at once.
_MIN_RUN_S = 5.0
_STOP_POLL_S = 0.1


class SupervisedProcess(ChildProcess):
    """Watches one child from a thread, which has to outlive the child's parent thread.

    Attributes:
        on_restart: called with what it announced each time it was started again, in some thread.
    """

    def __init__(
        self,
        name: str,
        spec: ProcessSpec,
        log_path: Path,
        start_timeout_s: float,
        *,
        on_trouble: Callable[[str, str], None],
    ) -> None:
        """Nothing runs yet.

        Args:
            name: for people.
            spec: how to start it.
            log_path: of its log.
            start_timeout_s: how long a start may take.
            on_trouble: called with the name and what is wrong, "" once it serves again; in some
                thread.
        """
        super().__init__(spec, log_path, start_timeout_s)
        self._name = name
        self._on_trouble = on_trouble
        self.on_restart: Callable[[dict[str, Any]], None] = lambda _: None
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._is_stopping = threading.Event()
        self._may_retry = threading.Event()
        self._thread: threading.Thread | None = None

    def supervise(self) -> None:
        """Start it again whenever it ends from now on; it was started."""
        self._thread = threading.Thread(
            target=self._supervise, name=f"supervise {self._name}", daemon=True
        )
        self._thread.start()

    def restart(self) -> None:
        """End it at once and have it started again, with the settings that it has now."""
        # A process that is waiting for its next try has nothing to kill.
        self._may_retry.set()
        self.kill()

    def close(self) -> None:
        """Stop it for good."""
        self._is_stopping.set()
        self._may_retry.set()
        self.stop()
        # A start that was under way may have made another one.
        while self._thread and self._thread.is_alive():
            self._thread.join(_STOP_POLL_S)
            self.stop()

    def _supervise(self) -> None:
        while True:
            began_s = time.monotonic()
            ended = self.wait()
            if self._is_stopping.is_set():
                return
            # One that ends right after each start would otherwise use a whole core.
            if time.monotonic() - began_s > _MIN_RUN_S:
                self._backoff.reset()
            else:
                self._pause()
            self._report(ended)
            if (announced := self._started()) is None:
                return
            self._on_trouble(self._name, "")
            self.on_restart(announced)

    def _started(self) -> dict[str, Any] | None:
        """What it announced, however many tries that takes; None when it is to stop."""
        while not self._is_stopping.is_set():
            try:
                return self.start()
            except NotReadyError as error:
                if not self._is_stopping.is_set():
                    self._report(str(error).partition("\n")[0])
            self._pause()
        return None

    def _report(self, fault: str) -> None:
        logger.warning("%s: %s; it is started again. Its log: %s", self._name, fault, self.log_path)
        self._on_trouble(self._name, fault)

    def _pause(self) -> None:
        self._may_retry.wait(self._backoff.next_pause_s())
        self._may_retry.clear()
