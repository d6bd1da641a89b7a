"""How long work reports what it does."""

from collections.abc import Callable

# Called with what is being done now, in words.
Progress = Callable[[str], None]


def no_progress(line: str) -> None:
    """For callers that show no progress."""
