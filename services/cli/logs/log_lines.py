"""Lines of several log files as one sequence, by the time at which each was written."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from services.cli.logs.log_files import LogFile
from services.cli.logs.rotation import older_part
from services.contracts.text.words import readable_time

_MOST_BYTES = 262_144
# Ray's own, in the time zone of the host: `[2026-11-24 19:52:00,123 I 12 12] ...`.
_TIME = re.compile(r"\[?(?:[A-Z]+ )?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.,](\d{3})")
# Ray's own of level INFO: of its library, of Serve, of its daemons; and a stack at a signal, which
# is none of trouble where the signal was SIGTERM.
_RAYS = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\tINFO |INFO \d{4}-|\[\d{4}-[^\]]* [ID] \d+ \d+\] "
)
_STACK = re.compile(r"\*\*\* SIG(\w+) received|(PC:| ) @ +0x")
_SHOWN_APART = ("time", "level", "process", "logger", "message", "exception")
# What Ray writes into a worker's file for itself.
_MARKS = (":job_id:", ":actor_name:", ":task_name:")


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line.

    Attributes:
        at: ISO 8601, UTC; of a line without a time that of the line before it, "" for none.
        record: its fields, of a line that is one of our own.
        is_rays: Ray wrote it, of no trouble.
    """

    component: str
    at: str
    text: str
    record: dict[str, Any]
    is_rays: bool

    def words(self) -> str:
        """For people: time, component, level unless it is `info`, message, further fields."""
        head = f"{readable_time(self.at)} {self.component}: ".lstrip()
        if not self.record:
            return head + self.text
        level = self.record.get("level", "info")
        more = [f"{k}={v}" for k, v in self.record.items() if k not in _SHOWN_APART]
        words = " ".join([str(self.record.get("message", "")), *more])
        exception = self.record.get("exception", "")
        urgency = "" if level == "info" else f"{level}: "
        return f"{head}{urgency}{words}" + (f"\n{exception}" if exception else "")


class LogReader:
    """Reads what files have that was not read before; at first at most their last 256 KiB."""

    def __init__(self) -> None:
        # One below 0 is in the older part, so far from its end.
        self._positions: dict[Path, int] = {}
        self._times: dict[Path, str] = {}
        self._signals: dict[Path, str] = {}

    def read(
        self, files: Iterable[LogFile], *, is_detailed: bool = True, is_rays: bool = True
    ) -> list[LogLine]:
        """Whole lines that are new, by their time; those of one file stay in their order.

        Args:
            files: to read.
            is_detailed: those of level `debug` too.
            is_rays: those too in which Ray says that all is well.
        """
        lines = (line for file in files for line in self._read_one(file))
        lines = lines if is_rays else (line for line in lines if not line.is_rays)
        found = [x for x in lines if is_detailed or x.record.get("level") != "debug"]
        return sorted(found, key=lambda line: line.at)

    def _read_one(self, file: LogFile) -> Iterator[LogLine]:
        for text in self._new_lines(file.path):
            if not text or text.startswith(_MARKS):
                continue
            record = _record_of(text)
            at = self._times[file.path] = _time_of(text, record) or self._times.get(file.path, "")
            is_rays = not record and self._is_rays(file.path, text)
            yield LogLine(
                component=file.component, at=at, text=text, record=record, is_rays=is_rays
            )

    def _is_rays(self, path: Path, text: str) -> bool:
        if stack := _STACK.search(text):
            self._signals[path] = stack[1] or self._signals.get(path, "")
            return self._signals[path] == "TERM"
        return bool(_RAYS.match(text))

    def _new_lines(self, path: Path) -> list[str]:
        try:
            with path.open("rb") as file:
                end = file.seek(0, 2)
                begin = self._positions.get(path, end - _MOST_BYTES)
                older = _older(path) if begin < 0 or begin > end else b""
                # One that is shorter now was emptied, or is another one of that name.
                begin = begin if begin <= end else min(begin - len(older), 0)
                begin = max(begin, -len(older))
                file.seek(max(begin, 0))
                # What has no end yet is read again once it has one.
                new = older[len(older) + min(begin, 0) :] + file.read()
        except OSError:  # it was removed
            return []
        whole, newline, _ = new.rpartition(b"\n")
        self._positions[path] = begin + len(whole) + len(newline)
        return whole.decode(errors="replace").splitlines()


def _older(path: Path) -> bytes:
    try:
        return older_part(path).read_bytes()
    except OSError:  # it was never so large
        return b""


def _record_of(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text) if text.startswith("{") else {}
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _time_of(text: str, record: dict[str, Any]) -> str:
    """When a line was written, "" where it does not say."""
    if "time" in record:
        return str(record["time"])
    if not (match := _TIME.match(text)):
        return ""
    local = datetime.fromisoformat(f"{match[1]}T{match[2]}.{match[3]}")
    return local.astimezone(UTC).isoformat(timespec="milliseconds")
