"""Controller and gateway as child processes of `smelt up`: started, watched, restarted.

A process that dies is started again at once, unless it dies within its first seconds: then
its configuration is wrong and the fleet stops, with the log's tail as the reason.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from services.contracts.errors import NotReadyError
from services.telemetry.child_log import ChildLog
from services.telemetry.ready import wait_ready

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30.0
# One that was never ready serves nobody, so nothing can be lost with it.
STOP_BEFORE_READY_TIMEOUT_S = 3.0
# A process that lived shorter than this will not do better the next time.
MIN_LIFE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """How to start one process.

    Attributes:
        module: run as `python -m module`.
        env_prefix: prefix of its settings.
        settings: its settings; `ready_fd` and `parent_pid` are added.
    """

    module: str
    env_prefix: str
    settings: Mapping[str, Any]


class ManagedProcess:
    """One child process with its log file."""

    def __init__(self, spec: ProcessSpec, log_path: Path, start_timeout_s: float) -> None:
        self.log_path = log_path
        self._spec = spec
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._is_ready = False

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return self._process.pid if self._process else 0

    def start(self) -> dict[str, Any]:
        """Start and wait until it is ready; returns what it said.

        Raises:
            NotReadyError: it ended or took too long; the message holds its log's tail.
        """
        read_fd, write_fd = os.pipe()
        child_log = ChildLog.from_here(self.log_path)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._spec.module],
                env=self._environment(write_fd),
                pass_fds=(write_fd,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(write_fd)
        self._started_at = time.monotonic()
        self._is_ready = False
        try:
            said = wait_ready(read_fd, self._start_timeout_s, self._spec.module, child_log)
            self._is_ready = True
            return said
        except NotReadyError as error:
            self.stop()
            raise NotReadyError(f"{error}\n{self.log_tail()}") from error

    def wait(self) -> None:
        """Block until the process ends."""
        if self._process is not None:
            self._process.wait()

    def update_settings(self, **settings: Any) -> None:
        """Change settings for the next start."""
        self._spec = replace(self._spec, settings=dict(self._spec.settings) | settings)

    def is_hopeless(self) -> bool:
        """Whether it died so soon that starting it again cannot help."""
        return time.monotonic() - self._started_at < MIN_LIFE_S

    def stop(self) -> None:
        """SIGTERM, then SIGKILL when it does not end in time."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S if self._is_ready else STOP_BEFORE_READY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("%s does not end; killed", self._spec.module)
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def log_tail(self, num_lines: int = 15) -> str:
        """The last lines of its log."""
        lines = self.log_path.read_text(errors="replace").splitlines()[-num_lines:]
        return "\n".join([f"last lines of {self.log_path}:", *lines])

    def _environment(self, ready_fd: int) -> dict[str, str]:
        own_pid = os.getpid()
        settings = dict(self._spec.settings) | {"ready_fd": ready_fd, "parent_pid": own_pid}
        own = {f"{self._spec.env_prefix}{k.upper()}": str(v) for k, v in settings.items()}
        return dict(os.environ) | own
