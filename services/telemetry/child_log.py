"""The log file of a child process, and the line of it with the reason why the child ended."""

import json
from dataclasses import dataclass
from pathlib import Path

_MOST_BYTES = 65536
_LONGEST = 500
_FAULTS = ("error", "critical")
_COMMAND_FAULT = "error: "


@dataclass(frozen=True, kw_only=True)
class ChildLog:
    """What one run of a child wrote.

    Attributes:
        path: of the file, which former runs may have written to as well.
        begins_at_byte: where this run's part begins.
    """

    path: Path
    begins_at_byte: int = 0

    @classmethod
    def from_here(cls, path: Path) -> "ChildLog":
        """Of a child that is about to be started."""
        return cls(path=path, begins_at_byte=path.stat().st_size if path.exists() else 0)

    def last_words(self) -> str:
        """The last fault that it logged, else its last line; "" when it wrote nothing."""
        lines = [line.strip() for line in self.text().splitlines() if line.strip()]
        faults = (fault for line in reversed(lines) if (fault := _fault_of(line)))
        words = next(faults, _message_of(lines[-1]) if lines else "")
        return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."

    def write_fault(self) -> str:
        """Why nothing can be written to it, as on a full disk; "" when something can."""
        try:
            with self.path.open("ab") as file:
                file.write(b"\n")
        except OSError as error:
            return f"{self.path} cannot be written: {error.strerror}"
        return ""

    def text(self) -> str:
        """What this run wrote, at most its last 64 KiB; "" when it cannot be read."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, 2)
                # One that is shorter now was emptied meanwhile: all of it is of this run.
                begin = self.begins_at_byte if self.begins_at_byte <= end else 0
                file.seek(max(begin, end - _MOST_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""


def _fault_of(line: str) -> str:
    """The text of an error, in a process's log or as a command prints it; "" for other lines."""
    if line.startswith(_COMMAND_FAULT):
        return line.removeprefix(_COMMAND_FAULT)
    document = _document(line)
    if isinstance(error := document.get("error"), dict):
        return str(error.get("message", "")).partition("\n")[0]
    if document.get("level") not in _FAULTS:
        return ""
    # The last line of a traceback is the exception itself.
    exception = str(document.get("exception", "")).strip().rpartition("\n")[2]
    return ": ".join(filter(None, (_message_of(line), exception)))


def _message_of(line: str) -> str:
    return str(_document(line).get("message", line))


def _document(line: str) -> dict[str, object]:
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
