"""How long work tells what it does."""

from collections.abc import Callable

# Told, in words, what is being done now.
Progress = Callable[[str], None]


def tell_nobody(line: str) -> None:
    """For callers that show no progress."""
