"""A program that is not ours, beside the fleet: started, waited for, ended."""

import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from services.contracts.errors import NotReadyError

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 5.0
# Neither Prometheus nor Grafana tells anybody that it serves: one has to ask. Its end is an event.
_POLL_S = 0.1


def answers(url: str) -> bool:
    """Whether a page can be had now."""
    # Not through a proxy of the environment: it is on this machine.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(url, timeout=_ANSWER_TIMEOUT_S) as page:
            return bool(page.status == HTTPStatus.OK)
    except (URLError, ConnectionError, TimeoutError):
        return False


class LeashedProgram:
    """One process with its log; it ends with this one, however this one ends."""

    def __init__(
        self,
        command: Sequence[str],
        log_path: Path,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it in a session of its own, so that Ctrl-C reaches us first."""
        self.log_path = log_path
        self._name = Path(command[0]).name
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "services.cli.leash", str(os.getpid()), *command],
                env=dict(os.environ) | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self) -> str:
        """What it said so far."""
        return self.log_path.read_text(errors="replace")

    def wait_for(self, look: Callable[[], str], timeout_s: float) -> str:
        """What `look` returns once that is not empty.

        Raises:
            NotReadyError: it ended or took too long; the message holds its log's tail.
        """
        deadline_s = time.monotonic() + timeout_s
        while not (answer := look()):
            if self._ends_within(_POLL_S):
                raise NotReadyError(f"{self._name} ended at once\n{self._tail()}")
            if time.monotonic() > deadline_s:
                raise NotReadyError(f"{self._name}: not ready in {timeout_s:g} s\n{self._tail()}")
        return answer

    def stop(self) -> None:
        """SIGTERM, then SIGKILL when it does not end in time."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("%s does not end; killed", self._name)
            self._process.kill()
            self._process.wait()

    def _ends_within(self, timeout_s: float) -> bool:
        """Wait for its end; an event, which Popen.wait with a timeout would only ask for."""
        if self._process.poll() is not None:
            return True
        pid_fd = os.pidfd_open(self._process.pid)
        try:
            ended, _, _ = select.select([pid_fd], [], [], timeout_s)
        finally:
            os.close(pid_fd)
        return bool(ended)

    def _tail(self, num_lines: int = 15) -> str:
        return "\n".join([f"last lines of {self.log_path}:", *self.log().splitlines()[-num_lines:]])
