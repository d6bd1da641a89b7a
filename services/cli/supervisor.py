"""Child processes of `smelt up`: started, waited for, stopped."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from services.contracts.errors import NotReadyError
from services.telemetry.child_log import ChildLog
from services.telemetry.ready import wait_ready

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30.0
# One that was never ready serves nobody, so nothing can be lost with it.
STOP_BEFORE_READY_TIMEOUT_S = 3.0


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """How to start one process.

    Attributes:
        module: run as `python -m module`.
        env_prefix: prefix of its settings.
        settings: its settings; `ready_fd` and `parent_pid` are added.
        defaults: environment variables that it gets unless ours has them.
    """

    module: str
    env_prefix: str
    settings: Mapping[str, Any]
    defaults: Mapping[str, str] = field(default_factory=dict)

    def environment(self, ready_fd: int) -> dict[str, str]:
        """All variables of the process, which says on a pipe that it is ready; -1 for none."""
        settings = dict(self.settings) | {"ready_fd": ready_fd, "parent_pid": os.getpid()}
        own = {f"{self.env_prefix}{k.upper()}": str(v) for k, v in settings.items()}
        return dict(self.defaults) | dict(os.environ) | own


class ManagedProcess:
    """One child process with its log file."""

    def __init__(self, spec: ProcessSpec, log_path: Path, start_timeout_s: float) -> None:
        self.log_path = log_path
        self._spec = spec
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._child_log = ChildLog(path=log_path)

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
        self._child_log = ChildLog.from_here(self.log_path)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._spec.module],
                env=self._spec.environment(ready_fd=write_fd),
                pass_fds=(write_fd,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(write_fd)
        self._is_ready = False
        try:
            said = wait_ready(read_fd, self._start_timeout_s, self._spec.module, self._child_log)
            self._is_ready = True
            return said
        except NotReadyError as error:
            self.stop()
            raise NotReadyError(f"{error}\n{self.log_tail()}") from error

    def wait(self) -> str:
        """Block until the process ends; returns how, for people."""
        code = self._process.wait() if self._process else 0
        if code < 0:
            return f"ended by signal {-code} ({signal.strsignal(-code)})"
        return f"ended with exit code {code}: {self._child_log.last_words()}"

    def update_settings(self, **settings: Any) -> None:
        """Change settings for the next start."""
        self._spec = replace(self._spec, settings=dict(self._spec.settings) | settings)

    def kill(self) -> None:
        """End it at once; does nothing when it does not run."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

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


def run_to_end(spec: ProcessSpec, log_path: Path, timeout_s: float) -> bool:
    """Run a process that ends by itself; whether it ended well and in time."""
    with log_path.open("ab") as log:
        try:
            done = subprocess.run(
                [sys.executable, "-m", spec.module],
                env=spec.environment(ready_fd=-1),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0
