"""Logs as one JSON object per line; set in a process's `__main__` alone.

Fields given through `extra=` become fields of the object. The id of the request being
served travels in a context variable, so code far from the wire need not pass it on.
"""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

REQUEST_ID: ContextVar[str] = ContextVar("smelt_request_id", default="")

# What logging itself puts on a record: everything else came through `extra=`.
# The three others are set later: by formatters, and by Python from 3.12 on.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, process, logger, message, its fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            fields["request_id"] = request_id
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        own = {name: value for name, value in vars(record).items() if _is_field(name)}
        # A field must never replace one of the record's own.
        return json.dumps({**own, **fields}, ensure_ascii=False, default=str)


def _is_field(name: str) -> bool:
    # A library's own marks begin with an underscore (Ray adds `_ray_timestamp_ns` to all).
    return name not in _STANDARD and not name.startswith("_")


def configure_logging(process: str, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send all logs of this process to one stream as JSON.

    Args:
        process: named in each line: gateway, controller, compiler.
        level: a level of Python's `logging`, in any case.
        stream: None is standard error.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process))
    # force: without it basicConfig does nothing where a library has added a handler already.
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Libraries report what Python warns about; it belongs into the same stream.
    logging.captureWarnings(capture=True)
