"""The access log: one line of JSON for each request, written by a thread of its own.

The event loop only appends to a list, which has a bound: what a disk cannot take in time is
left out and counted. Lines hold names, sizes and times; never payloads, tokens or headers.
"""

import json
import logging
import random
import sys
import threading
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from services.contracts.errors import InvalidRequestError
from services.telemetry import catalog
from services.telemetry.recorder import Recorder

logger = logging.getLogger(__name__)

STANDARD_OUTPUT: Final = "-"
# Seconds' worth of requests that a slow disk may be behind; some 20 MB.
MAX_PENDING: Final = 65_536
# Waking the thread for each line would take the interpreter from the event loop as often.
_WRITE_EVERY_S: Final = 0.25
_MAY_BE_EMPTY: Final = (
    "request_id",
    "trace_id",
    "model",
    "version",
    "peer",
    "caller",
    "replica_id",
)
_as_json = json.JSONEncoder(ensure_ascii=False).encode


class AccessRecord(NamedTuple):
    """One line; give fields by name.

    Attributes:
        time_s: POSIX seconds of the end.
        peer: the client's address, as gRPC writes it.
        caller: the token's name; "" without an access file.
        replica_id: the replica that answered, or was asked last; "" for none.
    """

    time_s: float
    rpc: str
    code: str
    duration_s: float
    request_id: str = ""
    trace_id: str = ""
    model: str = ""
    version: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    peer: str = ""
    caller: str = ""
    replica_id: str = ""

    def line(self) -> str:
        """The line, with its newline; fields that are empty are left out."""
        fields: dict[str, object] = self._asdict()
        del fields["time_s"]
        for name in _MAY_BE_EMPTY:
            if not fields[name]:
                del fields[name]
        fields["duration_s"] = round(self.duration_s, 6)
        time = datetime.fromtimestamp(self.time_s, UTC).isoformat(timespec="milliseconds")
        return f'{{"time": "{time}", {_as_json(fields)[1:]}\n'


class AccessLog:
    """Takes records on the event loop, and writes them a moment later."""

    def __init__(
        self, target: str, recorder: Recorder, *, share: float = 1.0, close_timeout_s: float = 5.0
    ) -> None:
        """Begin to write.

        Args:
            target: a file, or `-` for standard output.
            recorder: counts what is left out.
            share: of the requests that went well; all others are always written.
            close_timeout_s: how long a pipe without a reader may delay the end of the process.

        Raises:
            InvalidRequestError: the file cannot be written.
        """
        self._share = share
        self._recorder = recorder
        self._close_timeout_s = close_timeout_s
        self._pending: deque[AccessRecord] = deque()
        self._num_dropped = 0
        self._num_counted = 0
        self._target = target
        self._check_target()
        self._has_failed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_until_closed, name="access log")
        self._thread.daemon = True
        self._thread.start()

    def wants(self, code: grpc.StatusCode) -> bool:
        """Whether a request that ended so is to be written; different each time."""
        if code is not grpc.StatusCode.OK or self._share >= 1:
            return True
        return random.random() < self._share  # noqa: S311 - no secret

    def add(self, record: AccessRecord) -> None:
        """Have a record written; never waits."""
        if len(self._pending) >= MAX_PENDING:
            self._num_dropped += 1
            return
        self._pending.append(record)

    def close(self) -> None:
        """Write what is left, and close; what a stuck disk or pipe does not take is lost."""
        self._closing.set()
        self._thread.join(self._close_timeout_s)
        if self._thread.is_alive():
            logger.error("access log %s blocks writes; its last lines are lost", self._target)

    def _check_target(self) -> None:
        try:
            _append(self._target, b"")
        except OSError as error:
            raise InvalidRequestError(
                f"access log {self._target} cannot be written: {error}; correct "
                f"SMELT_GATEWAY_ACCESS_LOG, '{STANDARD_OUTPUT}' is standard output"
            ) from error

    def _write_until_closed(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(_WRITE_EVERY_S)
            try:
                self._write()
            except Exception as error:
                # Whatever it is: a thread that ended here would end the log.
                if not self._has_failed:
                    logger.error("access log %s cannot be written now: %s", self._target, error)
                self._has_failed = True

    def _write(self) -> None:
        # Only this thread takes from the left, so as many as are there now can be taken.
        records = [self._pending.popleft() for _ in range(len(self._pending))]
        dropped = self._num_dropped - self._num_counted
        self._num_counted = self._num_dropped
        self._recorder.count(catalog.ACCESS_LOG_DROPPED, dropped)
        if not records:
            return
        try:
            _append(self._target, _encoded("".join([record.line() for record in records])))
        except Exception:
            self._recorder.count(catalog.ACCESS_LOG_DROPPED, len(records))
            raise
        self._has_failed = False


def _append(target: str, lines: bytes) -> None:
    """Opened each time, so that a file that was moved away is left alone from then on."""
    if target == STANDARD_OUTPUT:
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()
        return
    # Unbuffered: workers share the file, and the system adds each write as a whole.
    with Path(target).open("ab", buffering=0) as file:
        left = memoryview(lines)
        while left:
            # A disk that is nearly full takes a part, and raises the next time.
            left = left[file.write(left) :]


def _encoded(lines: str) -> bytes:
    """As UTF-8; half a surrogate, as a token's claims may hold, as JSON's escape of it."""
    return lines.encode(errors="backslashreplace")
