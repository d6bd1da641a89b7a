"""A child process of `smelt up` that is started again whenever it ends.

What else runs does not wait for that, and does not end with it: gateways go on with replicas
they know while a controller cannot start.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from services.cli.supervisor import ManagedProcess
from services.contracts.backoff import Backoff
from services.contracts.errors import NotReadyError

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
# One that ran for less is not started again at once.
_MIN_LIFE_S = 5.0
_STOP_POLL_S = 0.1


class KeptProcess:
    """Watches one child from a thread; its parent has to outlive that.

    Attributes:
        on_restart: called with what it announced each time it was started again, in some thread.
    """

    def __init__(
        self,
        name: str,
        process: ManagedProcess,
        *,
        on_trouble: Callable[[str, str], None],
    ) -> None:
        """Nothing runs yet.

        Args:
            name: for people.
            process: to be started, and started again.
            on_trouble: called with the name and what is wrong, "" once it serves again; in some
                thread.
        """
        self._name, self._process = name, process
        self._on_trouble = on_trouble
        self.on_restart: Callable[[dict[str, Any]], None] = lambda _: None
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._is_stopping = threading.Event()
        self._may_retry = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self) -> None:
        """Watch it from now on; it was started."""
        self._thread = threading.Thread(target=self._keep, name=f"keep {self._name}", daemon=True)
        self._thread.start()

    def renew(self) -> None:
        """End it at once and have it started again, with the settings that it has now."""
        self._may_retry.set()
        self._process.kill()

    def stop(self) -> None:
        """Stop it for good."""
        self._is_stopping.set()
        self._may_retry.set()
        self._process.stop()
        # A start that was under way may have made another one.
        while self._thread and self._thread.is_alive():
            self._thread.join(_STOP_POLL_S)
            self._process.stop()

    def _keep(self) -> None:
        while True:
            began_s = time.monotonic()
            ended = self._process.wait()
            if self._is_stopping.is_set():
                return
            if time.monotonic() - began_s > _MIN_LIFE_S:
                self._backoff.reset()
            else:
                self._pause()
            self._tell(ended)
            if (said := self._started()) is None:
                return
            self._on_trouble(self._name, "")
            self.on_restart(said)

    def _started(self) -> dict[str, Any] | None:
        """What it announced, however many tries that takes; None when it is to stop."""
        while not self._is_stopping.is_set():
            try:
                return self._process.start()
            except NotReadyError as error:
                if not self._is_stopping.is_set():
                    self._tell(str(error).partition("\n")[0])
            self._pause()
        return None

    def _tell(self, fault: str) -> None:
        logger.warning("%s: %s; it is started again. Its log: %s",
                       self._name, fault, self._process.log_path)  # fmt: skip
        self._on_trouble(self._name, fault)

    def _pause(self) -> None:
        self._may_retry.wait(self._backoff.next_pause_s())
        self._may_retry.clear()
