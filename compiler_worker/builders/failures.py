"""Keeps a compiler's messages: errors become BuildError, warnings become findings."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from textwrap import shorten

from services.contracts.errors import BuildError, BuildUnavailableError, SmeltError

MAX_LOG_LINES = 40
_MAX_REASON_CHARS = 400


@contextmanager
def build_errors(what: str) -> Iterator[None]:
    """Raise BuildError for any foreign exception; errors of Smelt pass unchanged."""
    try:
        yield
    except SmeltError:
        raise
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise BuildError(
            f"{what}: {type(error).__name__}: {_reason(lines)}",
            log_tail=tuple(lines[-MAX_LOG_LINES:]),
        ) from error


def _reason(lines: Sequence[str]) -> str:
    """The first line; one that ends with a colon only announces the others."""
    if not lines[0].rstrip().endswith(":"):
        return lines[0]
    return shorten(" ".join(lines), _MAX_REASON_CHARS, placeholder=" ...")


def check_available(reason: str, what: str) -> None:
    """Raise BuildUnavailableError when there is a reason."""
    if reason:
        raise BuildUnavailableError(f"{what} cannot be built on this machine: {reason}")


@contextmanager
def recorded_warnings() -> Iterator[list[str]]:
    """Collect Python warnings as findings, each once.

    Deprecations are left out: they are of a library's own code, not of the engine.
    """
    findings: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        # The default shows each once per place, and an earlier build of this process may have had
        # it.
        warnings.simplefilter("always")
        yield findings
    texts = (str(w.message) for w in caught if not issubclass(w.category, _ABOUT_LIBRARIES))
    findings.extend(dict.fromkeys(texts))


_ABOUT_LIBRARIES = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
