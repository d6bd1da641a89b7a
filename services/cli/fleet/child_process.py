"""Child processes of `smelt up`, ours and Prometheus and Grafana: started, waited for, stopped."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from services.contracts.errors import NotReadyError
from services.telemetry.child_log import ChildLog
from services.telemetry.ready import late_words, wait_ready

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30.0
# One that was never ready serves no requests, so nothing can be lost with it.
STOP_BEFORE_READY_TIMEOUT_S = 3.0
_PROBE_PERIOD_S = 0.1


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """How to start one of our own modules, which announces on a pipe that it is ready.

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

    @property
    def name(self) -> str:
        """For people."""
        return self.module

    @property
    def command(self) -> list[str]:
        """Program and arguments."""
        return [sys.executable, "-m", self.module]

    def environment(self, ready_fd: int) -> dict[str, str]:
        """All variables of the process; `ready_fd` is -1 for one that nothing waits for."""
        settings = dict(self.settings) | {"ready_fd": ready_fd, "parent_pid": os.getpid()}
        own = {f"{self.env_prefix}{k.upper()}": str(v) for k, v in settings.items()}
        # What `smelt up` decides wins over the environment, and that over defaults.
        return dict(self.defaults) | dict(os.environ) | own


@dataclass(frozen=True, kw_only=True)
class ProgramSpec:
    """How to start a program that is not ours and announces nothing.

    Attributes:
        arguments: program and arguments.
        probe: the program's URL once it serves, "" before; given what it has logged so far.
        variables: environment variables beside our own.
    """

    arguments: Sequence[str]
    probe: Callable[[str], str]
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For people."""
        return Path(self.arguments[0]).name

    @property
    def command(self) -> list[str]:
        """The program through an exec that has it end with this process."""
        shim = [sys.executable, "-m", "services.cli.fleet.pdeathsig_exec", str(os.getpid())]
        return [*shim, *self.arguments]


class ChildProcess:
    """One child process with its log file; it ends with this process, however that ends."""

    def __init__(
        self, spec: ProcessSpec | ProgramSpec, log_path: Path, start_timeout_s: float
    ) -> None:
        """Describe the process; `start` starts it.

        Args:
            spec: command, environment and how the process announces that it serves.
            log_path: what its output is appended to.
            start_timeout_s: how long it may take to serve.
        """
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

    def start(self, line: Callable[[], str] | None = None) -> dict[str, Any]:
        """Start and wait until it is ready; returns what it announced, or `url` of a program.

        Args:
            line: called while it starts; gives its standard input, which is empty without.

        Raises:
            NotReadyError: it ended or took too long; the message holds its log's tail.
        """
        self._is_ready = False
        # Former runs wrote to the same file; their errors are not this run's.
        self._child_log = ChildLog.from_here(self.log_path)
        try:
            announced = self._start(self._spec, line)
        except NotReadyError as error:
            self.stop()
            raise NotReadyError(f"{error}{self.log_tail()}") from error
        self._is_ready = True
        return announced

    def run(self, timeout_s: float) -> bool:
        """Start it and wait for its end; whether it ended with exit code 0 and in time."""
        assert isinstance(self._spec, ProcessSpec)
        self._process = spawn(self._spec.command, self._spec.environment(-1), self.log_path)
        try:
            return self._process.wait(timeout_s) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            # Also when Ctrl-C ends the wait.
            self.kill()

    def wait(self) -> str:
        """Block until the process ends; returns how, for people."""
        code = self._process.wait() if self._process else 0
        if code < 0:
            return f"ended by signal {-code} ({signal.strsignal(-code)})"
        return f"ended with exit code {code}: {self._child_log.last_words()}"

    def update_settings(self, **settings: Any) -> None:
        """Change settings for the next start."""
        assert isinstance(self._spec, ProcessSpec)
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
        # To it alone: it ends what it started in its own order.
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S if self._is_ready else STOP_BEFORE_READY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("%s does not end; killed", self._spec.name)
            # It leads a group of its own, so what it started ends too.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def log_text(self) -> str:
        """What this run of it has logged so far."""
        return self._child_log.text()

    def log_tail(self, num_lines: int = 15) -> str:
        """The last lines that this run of it logged, below a heading; "" where it logged none."""
        lines = self.log_text().splitlines()[-num_lines:]
        return "\n".join([f"\nlast lines of {self.log_path}:", *lines]) if lines else ""

    def _start(
        self, spec: ProcessSpec | ProgramSpec, line: Callable[[], str] | None
    ) -> dict[str, Any]:
        if isinstance(spec, ProgramSpec):
            environment = dict(os.environ) | dict(spec.variables)
            self._process = spawn(spec.command, environment, self.log_path)
            return {"url": self._probed(spec, self._process)}
        read_fd, write_fd = os.pipe()
        stdin = subprocess.PIPE if line else subprocess.DEVNULL
        environment = spec.environment(write_fd)
        self._process = spawn(spec.command, environment, self.log_path, write_fd, stdin)
        # The child alone holds that end now: its death closes the pipe and ends the wait.
        os.close(write_fd)
        if line and self._process.stdin:
            # One that has ended by then has words of its own.
            with suppress(BrokenPipeError), self._process.stdin as pipe:
                pipe.write(line().encode())
        return wait_ready(read_fd, self._start_timeout_s, spec.name, self._child_log)

    def _probed(self, spec: ProgramSpec, process: subprocess.Popen[bytes]) -> str:
        deadline_s = time.monotonic() + self._start_timeout_s
        while not (url := spec.probe(self.log_text())):
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PROBE_PERIOD_S)
                raise NotReadyError(f"{spec.name} ended before it was ready")
            if time.monotonic() > deadline_s:
                raise NotReadyError(late_words(spec.name, self._start_timeout_s))
        return url


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    log_path: Path,
    ready_fd: int = -1,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a process whose output is appended to its log.

    Args:
        command: program and arguments.
        environment: all of its variables.
        log_path: for standard output and standard error.
        ready_fd: a pipe's end that it inherits; -1 for none.
        stdin: its standard input, as subprocess takes it.
    """
    with log_path.open("ab") as log:
        return subprocess.Popen(
            command,
            env=environment,
            pass_fds=() if ready_fd < 0 else (ready_fd,),
            stdin=stdin,
            stdout=log,
            stderr=log,
            # A session of its own: Ctrl-C reaches this process alone, which ends them in order.
            start_new_session=True,
        )
