"""Times, ratios, sizes and command lines as text for people. Documents keep the numbers."""

import shlex
import sys
from datetime import UTC, datetime
from typing import Final

NO_FLEET: Final = "no fleet runs here"
# Below it, two decimals would leave one digit or none.
_LEAST_TWO_DECIMALS = 0.1
_MOST_LINES = 5


def readable_time(at: str) -> str:
    """A document's time in UTC: `2026-11-21 13:59:23Z`; what is no time stays as it is."""
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return at
    known = moment.astimezone(UTC) if moment.tzinfo else moment
    return f"{known:%Y-%m-%d %H:%M:%S}Z"


def readable_ratio(ratio: float) -> str:
    """Two decimals, `1.25`; of a small one two digits, `0.0031`, and never `0.00`."""
    return f"{ratio:.2f}" if ratio >= _LEAST_TWO_DECIMALS else f"{ratio:.2g}"


def readable_size(num_bytes: float) -> str:
    """Whole bytes, `999 B`, else one decimal of the largest unit that fits, `40.2 kB`."""
    if round(num_bytes) < 1000:
        return f"{num_bytes:.0f} B"
    for unit, scale in (("kB", 1e3), ("MB", 1e6)):
        # What rounds up to 1000.0 is shown in the next unit.
        if round(num_bytes / scale, 1) < 1000:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes / 1e9:.1f} GB"


def counted(number: int, what: str) -> str:
    """`1 device`, `2 devices`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def last_lines(stderr: bytes) -> str:
    """The end of what a process wrote, without the frames of a traceback; never empty."""
    lines = stderr.decode(errors="replace").splitlines()
    # Frames are indented, and name files of this host, which clients need not know.
    words = [line for line in lines if line.strip() and not line.startswith((" ", "Traceback"))]
    return " | ".join(words[-_MOST_LINES:]) or "no words"


def worker_command(store_url: str, *arguments: str) -> str:
    """A command of the compiler worker as a shell takes it: of this interpreter and store."""
    command = [sys.executable, "-m", "compiler_worker", *arguments, "--store-url", store_url]
    return shlex.join(command)
