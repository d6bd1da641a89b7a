"""The two libraries of one API, `tensorrt` and `tensorrt_rtx`, as far as both halves need them."""

import importlib
import logging
from typing import Any

from services.engines.device.toolchain import installed_version

logger = logging.getLogger(__name__)

# In order of preference: TensorRT proper tunes on the device it is for.
LIBRARIES = ("tensorrt", "tensorrt_rtx")
_MOST_KEPT = 1000


class Messages:
    """The messages that TensorRT gave its logger.

    Attributes:
        warnings, errors: the newest messages by severity, oldest first, each once.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.errors: list[str] = []

    def add(self, severity: str, text: str) -> None:
        """Keep one message; information and verbose output go to the debug log only."""
        kept = {"WARNING": self.warnings, "ERROR": self.errors, "INTERNAL_ERROR": self.errors}
        if severity not in kept:
            logger.debug("tensorrt: %s", text)
        # TensorRT may repeat a warning for each layer.
        elif text not in kept[severity]:
            kept[severity].append(text)
            # Those of runs may name shapes and addresses, so that no two are the same.
            del kept[severity][:-_MOST_KEPT]

    def take_errors(self) -> str:
        """All errors since the last call, in a line."""
        words = "; ".join(self.errors) or "no reason was given"
        self.errors.clear()
        return words


def import_tensorrt(library: str) -> Any:
    """The module of one of LIBRARIES."""
    return importlib.import_module(library)


def installed_libraries() -> list[str]:
    """Those of LIBRARIES that are installed, preferred ones first."""
    return [library for library in LIBRARIES if installed_version(library)]


def logger_of(trt: Any, messages: Messages) -> Any:
    """The logger of a TensorRT API, from now on telling `messages`.

    TensorRT keeps the first logger until the process ends, so there is one per library and
    its listener changes.
    """
    if trt.__name__ not in _collectors:
        _collectors[trt.__name__] = _new_collector(trt)
    collector = _collectors[trt.__name__]
    collector.messages = messages
    return collector


_collectors: dict[str, Any] = {}


def _new_collector(trt: Any) -> Any:
    # Inside, as its base belongs to a library that need not be installed.
    class Collector(trt.ILogger):  # type: ignore[misc]
        messages: Messages

        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            self.messages.add(severity.name, msg)

    return Collector()
