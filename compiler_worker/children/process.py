"""Runs a job in a child process, and always returns an outcome.

Whatever the child does (finish, refuse, crash, hang, use all memory), the parent gets a
`ChildOutcome` with the stage, the reason and the last log lines.
"""

import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic

import psutil
from pydantic import ValidationError

from compiler_worker.children.child import EXIT_FAILURE, STACK_SIGNAL
from compiler_worker.children.child_jobs import ChildJob, Request, Result
from compiler_worker.children.requests import RESULT_FILE, ChildEvent, ChildFailure, Stage
from compiler_worker.host_memory import Allowance, host_memory
from services.contracts.errors import BuildError, SmeltError
from services.contracts.process.disk_room import is_of_full_disk

OnEvent = Callable[[ChildEvent], None]

_MAX_LOG_LINES = 60
_GIB = 2**30
# Memory is looked at this often; also how late a hanging child is noticed at most.
_POLL_S = 0.25
# A killed process group closes its pipes at once; only a process that left the group
# could hold them open.
_DRAIN_S = 5.0
# Stacks are written at once, if at all.
_STACK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ChildLimits:
    """What a child may take.

    Attributes:
        time_s: seconds from start to end, without those in which it waits for its turn.
        memory_bytes: resident memory of the child and all its descendants; None leaves it to
            what the host has at each moment.
        num_builds: returns how many children share this host, this one among them.
        time_setting, memory_setting: names of the settings that raise them, for messages.
        stop_reason: called while the child works; ends it when it returns a reason.
    """

    time_s: float
    memory_bytes: int | None
    time_setting: str
    memory_setting: str = "SMELT_MEMORY_LIMIT_GIB"
    num_builds: Callable[[], int] = lambda: 1
    stop_reason: Callable[[], str] = str

    def allowance(self, used_bytes: int) -> Allowance:
        """What a child that holds so many bytes may take at this moment."""
        if self.memory_bytes is not None:
            return Allowance(num_bytes=self.memory_bytes)
        return host_memory().allowance(used_bytes, max(self.num_builds(), 1))


@dataclass(kw_only=True)
class ChildOutcome(Generic[Result]):
    """How a child ended.

    Attributes:
        result: its result; None exactly when there is a failure.
        failure: why there is no result, "" when there is one.
        error: class of the error that the child itself reported, "" when it could not.
        stage: the last stage entered.
        durations_s: seconds by stage that ended, summed where it was entered again.
        peak_memory_bytes: most resident memory seen of the child and its descendants.
        is_counted: False where it was ended as others held the memory, or failed as a disk was
            full: it is not at fault.
    """

    stage: Stage
    result: Result | None = None
    failure: str = ""
    error: str = ""
    log_tail: tuple[str, ...] = ()
    durations_s: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    is_counted: bool = True

    def require(self, otherwise: type[SmeltError], *own: type[SmeltError]) -> Result:
        """Return the result, or raise why there is none.

        Args:
            otherwise: raised for a child that crashed, was ended or met another error.
            own: errors that are raised again as in the child, for their subclasses too.
        """
        if self.result is not None:
            return self.result
        kind = next((each for each in own if self.error in _names(each)), otherwise)
        if issubclass(kind, BuildError):
            raise kind(self.failure, log_tail=self.log_tail)
        raise kind(self.failure)


def run_child(
    job: ChildJob[Request, Result],
    request: Request,
    folder: Path,
    limits: ChildLimits,
    on_event: OnEvent,
    program: Sequence[str] = (sys.executable, "-m", "compiler_worker"),
) -> ChildOutcome[Result]:
    """Do a job in a process of its own; never raises for what that process does.

    Args:
        job: one of `child_jobs`.
        request: written to `folder`, where the result appears too.
        folder: an existing folder of this child alone.
        limits: time and memory.
        on_event: called for each event and each log line, in this thread.
        program: what takes the command and its request.
    """
    request_path = folder / "request.json"
    request_path.write_bytes(request.canonical_json())
    arguments = [*program, job.command, "--request", str(request_path)]
    arguments += ["--parent-pid", str(os.getpid())]
    # Its own group, so that compilers which it starts are ended with it.
    with subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        watch = _Watch(process, limits, on_event, ChildOutcome[Result](stage=job.first_stage))
        try:
            watch.until_ended()
        finally:
            _kill_group(process)
    return watch.outcome(job, folder / RESULT_FILE)


def _names(error: type[SmeltError]) -> set[str]:
    return {error.__name__, *(each.__name__ for each in error.__subclasses__())}


class _Watch(Generic[Result]):
    """Follows one child: reads its lines, keeps its limits."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        limits: ChildLimits,
        on_event: OnEvent,
        outcome: ChildOutcome[Result],
    ) -> None:
        self._process = process
        self._limits = limits
        self._on_event = on_event
        self._outcome = outcome
        self._log: deque[str] = deque(maxlen=_MAX_LOG_LINES)
        self._deadline = time.monotonic() + limits.time_s
        self._left_s = limits.time_s
        self._allowed = limits.allowance(0)

    def until_ended(self) -> None:
        """Return when the child has ended and all its lines are read."""
        with selectors.DefaultSelector() as selector:
            for stream, take in (
                (self._process.stdout, self._take_event),
                (self._process.stderr, self._take_log_line),
            ):
                assert stream is not None
                # A pipe that is ready may be read empty by then: a read must not wait for a child
                # that hangs.
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, _Lines(stream, take))
            drained_by = math.inf
            # A child that closed its pipes may work on, and one that ended may have left lines in
            # them.
            while selector.get_map() or drained_by == math.inf:
                for ready, _ in selector.select(_POLL_S):
                    if not ready.data.read():
                        selector.unregister(ready.fileobj)
                if drained_by == math.inf and self._has_ended():
                    self._ask_where(selector)
                    drained_by = time.monotonic() + _DRAIN_S
                    _kill_group(self._process)
                if time.monotonic() > drained_by:
                    break
        self._process.wait()

    def _ask_where(self, selector: selectors.BaseSelector) -> None:
        """Have a child that hangs write its stacks to the log before it is ended."""
        if time.monotonic() < self._deadline:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self._process.pid, STACK_SIGNAL)
        until = time.monotonic() + _STACK_S
        while time.monotonic() < until and (found := selector.select(_STACK_S)):
            for ready, _ in found:
                if not ready.data.read():
                    selector.unregister(ready.fileobj)

    def outcome(self, job: ChildJob[Any, Result], result_path: Path) -> ChildOutcome[Result]:
        """What became of the child, after it ended."""
        outcome = self._outcome
        outcome.log_tail = tuple(self._log)
        code = self._process.returncode
        if outcome.failure:
            return outcome
        if code == 0 and result_path.is_file():
            outcome.result = job.result.from_json(result_path.read_bytes())
        # A library may exit with that code too; it leaves no such file.
        elif code == EXIT_FAILURE and result_path.is_file():
            reported = ChildFailure.from_json(result_path.read_bytes())
            outcome.failure = reported.message
            outcome.error = reported.error
            outcome.is_counted = reported.is_counted
            outcome.log_tail = reported.log_tail or outcome.log_tail
        else:
            outcome.is_counted = not is_of_full_disk(None, result_path.parent)
            how = (
                f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
            )
            # The owner's code runs there too: a source, a metric.
            why = "" if code else ", without a result; code that it calls must not call sys.exit"
            if code == -signal.SIGKILL:
                why = ", as the kernel does where a host or a container has no memory left"
                outcome.is_counted &= not self._allowed.is_temporary
            outcome.failure = f"the process {how} in stage '{outcome.stage}'{why}"
        return outcome

    def _has_ended(self) -> bool:
        """Whether the child is gone, or has to go because of its limits."""
        # Seen but not reaped: its number, which is the group's, cannot be given away yet.
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self._process.pid, options) is not None:
            return True
        self._outcome.failure = (
            self._limits.stop_reason() or self._time_fault() or self._memory_fault()
        )
        return bool(self._outcome.failure)

    def _time_fault(self) -> str:
        if time.monotonic() < self._deadline:
            return ""
        return (
            f"no result within {self._limits.time_s:g} s, in stage '{self._outcome.stage}'; "
            f"raise {self._limits.time_setting} if it needs longer"
        )

    def _memory_fault(self) -> str:
        used = _resident_bytes(self._process.pid)
        self._outcome.peak_memory_bytes = max(self._outcome.peak_memory_bytes, used)
        allowed = self._allowed = self._limits.allowance(used)
        if used <= allowed.num_bytes:
            return ""
        self._outcome.is_counted = not allowed.is_temporary
        fix = f"raise {self._limits.memory_setting} if it needs more"
        if allowed.is_temporary:
            fix = "free memory on this host, or retry when other processes use less"
        return (
            f"{used / _GIB:.2f} GiB of memory in use in stage '{self._outcome.stage}', "
            f"{allowed.num_bytes / _GIB:.2f} allowed{allowed.words}; {fix}"
        )

    def _take_event(self, line: str) -> None:
        try:
            event = ChildEvent.from_json(line.encode())
        except ValidationError:
            self._take_log_line(line)
            return
        if event.stage:
            self._outcome.stage = event.stage
        if event.ended_stage:
            earlier_s = self._outcome.durations_s.get(event.ended_stage, 0.0)
            self._outcome.durations_s[event.ended_stage] = earlier_s + event.duration_s
        self._pause_deadline(event)
        self._on_event(event)

    def _pause_deadline(self, event: ChildEvent) -> None:
        """Move the deadline by what the child waits; whom it waits for has limits too."""
        if event.stage is Stage.WAIT:
            self._left_s = self._deadline - time.monotonic()
            self._deadline = math.inf
        elif event.ended_stage is Stage.WAIT:
            self._deadline = time.monotonic() + self._left_s

    def _take_log_line(self, line: str) -> None:
        self._log.append(line)
        self._on_event(ChildEvent(line=line))


class _Lines:
    """Cuts what a pipe gives into lines."""

    def __init__(self, stream: IO[bytes], take: Callable[[str], None]) -> None:
        self._stream = stream
        self._take = take
        self._rest = b""

    def read(self) -> bool:
        """Take what is there; False at the end of the pipe."""
        chunk = os.read(self._stream.fileno(), 65536)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if not chunk and self._rest:
            lines = [self._rest]
            self._rest = b""
        for line in lines:
            self._take(line.decode(errors="replace"))
        return bool(chunk)


def _resident_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants; 0 for those that just ended."""
    total = 0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_info().rss
    return total


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a child that was not reaped yet, and all that it started."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
