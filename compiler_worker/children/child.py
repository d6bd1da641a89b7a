"""The inside of a child process: one job, then it ends.

Compilers crash, hang and leak. Here they can: the parent reads what happened and goes on.
"""

import faulthandler
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import format_exc
from typing import Any, TextIO

from compiler_worker.children.child_jobs import ChildJob
from compiler_worker.children.requests import RESULT_FILE, ChildEvent, ChildFailure, Stage
from services.contracts.errors import BuildError, SmeltError
from services.contracts.model.document import Document
from services.contracts.process.disk_room import is_of_full_disk

logger = logging.getLogger(__name__)

EXIT_FAILURE = 3
# Has a child write where it is.
STACK_SIGNAL = signal.SIGUSR1


class Events:
    """Writes a child's progress, one JSON line per event.

    Attributes:
        waited_s: seconds in stages of waiting, which are no part of the work.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.waited_s = 0.0

    @classmethod
    def on_stdout(cls) -> "Events":
        """Take standard output for events alone; what others print there goes to the log."""
        # The descriptor, not sys.stdout: libraries in C++ write to it too.
        own = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        return cls(os.fdopen(own, "w", buffering=1))

    def line(self, text: str) -> None:
        """A line to show on a terminal."""
        self._write(ChildEvent(line=text))

    @contextmanager
    def stage(self, stage: Stage, line: str = "") -> Iterator[None]:
        """Announce a stage and, when it ended well, its seconds; one that is entered again adds.

        In none other: seconds of stages are summed, and the last one entered is where a child is.
        """
        self._write(ChildEvent(stage=stage, line=line))
        started = time.monotonic()
        yield
        duration_s = time.monotonic() - started
        if stage is Stage.WAIT:
            self.waited_s += duration_s
        self._write(ChildEvent(ended_stage=stage, duration_s=duration_s))

    def _write(self, event: ChildEvent) -> None:
        self._stream.write(json.dumps(event.model_dump(mode="json")) + "\n")
        self._stream.flush()


def configure_crash_handling() -> None:
    """Make this process the one that ends when something goes wrong, and have it write where.

    A crash, and a signal before a hanging process is ended, write the stack of every thread to
    the log. When memory runs out on the machine the kernel ends this process before the worker.
    A core dump would be as large as the model, and is not read.
    """
    faulthandler.enable()
    # Not chained: the default action of the signal would end the process after the first stack.
    faulthandler.register(STACK_SIGNAL, chain=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # some containers forbid it
        Path("/proc/self/oom_score_adj").write_text("1000")


def run_request(job: ChildJob[Any, Any], request_path: Path, events: Events) -> int:
    """Do a job on a request file and write its result beside it; the exit code.

    0 means a result, EXIT_FAILURE a ChildFailure with the error's message, whatever raised
    it; any other code is a crash.

    Args:
        job: what to do; names the types of request and result.
        request_path: JSON of the request; the result is written beside it.
        events: called with each event of the job.
    """
    result_path = request_path.with_name(RESULT_FILE)
    try:
        request = job.request.from_json(request_path.read_bytes())
        result: Document = job.function(request, events)
    except SmeltError as error:
        logger.info("%s: %s", type(error).__name__, error)
        log_tail = error.log_tail if isinstance(error, BuildError) else ()
        return _failed(result_path, error, str(error), log_tail)
    except Exception as error:
        # Not foreseen, so the place is kept too: the record is all that is left of a child.
        logger.exception("an internal error, not the engine's")
        message = f"{type(error).__name__}: {error}"
        return _failed(result_path, error, message, tuple(format_exc().splitlines()))
    result_path.write_bytes(result.canonical_json())
    return 0


def _failed(path: Path, error: Exception, message: str, log_tail: tuple[str, ...]) -> int:
    failure = ChildFailure(
        error=type(error).__name__,
        message=message,
        log_tail=log_tail,
        is_counted=not is_of_full_disk(error, path.parent),
    )
    path.write_bytes(failure.canonical_json())
    return EXIT_FAILURE


def limit_threads(num_threads: int) -> None:
    """Set the number of threads for the libraries that read it; 0 leaves it to them.

    They read it when they are imported, so this comes before.
    """
    if num_threads:
        os.environ["OMP_NUM_THREADS"] = str(num_threads)
