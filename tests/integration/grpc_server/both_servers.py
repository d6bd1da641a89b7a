"""Which cases run on which server, by the table of `c_core.py`."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from services.grpc_server.aio_server import AioServer
from services.grpc_server.server import GrpcServer
from tests.integration.grpc_server.c_core import DIFFERENCES

ServerClass = type[GrpcServer] | type[AioServer]
FOLDER: Final = Path(__file__).parent
# By the ids of their cases.
SERVERS: Final[dict[str, ServerClass]] = {"smelt": GrpcServer, "grpc.aio": AioServer}
# What stands before a case's own parameters in its id: its event loop and its server.
_AXES: Final = re.compile(r"(?:(uvloop|asyncio)-)?(smelt|grpc\.aio)(?:-|$)")


class ModuleDifferences:
    """The table's rows for one module.

    Attributes:
        unused: entries that have matched no case yet.
    """

    def __init__(self, module: str) -> None:
        rows = DIFFERENCES.get(module, {})
        self._reasons = {name: reason for reason, names in rows.items() for name in names}
        self.unused = set(self._reasons)

    def reason(self, test: str, case: str) -> str | None:
        """Why grpc.aio does not run it; None where it does."""
        found = None
        for entry, reason in self._reasons.items():
            if _is_match(entry, test, f"{test}[{case}]"):
                self.unused.discard(entry)
                found = reason
        return found


def _is_match(entry: str, test: str, full: str) -> bool:
    """An entry is a test or a case of it; `*` stands for anything."""
    pattern = ".*".join(map(re.escape, entry.split("*")))
    return entry == test or re.fullmatch(pattern, full) is not None


def chosen(module: Path, items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """A module's cases, those skipped that grpc.aio does not run.

    Raises:
        ValueError: an entry of the table matches no case, or its module is not there.
    """
    if missing := [each for each in DIFFERENCES if not (FOLDER / each).is_file()]:
        raise ValueError(f"the table has modules that are not there: {missing}")
    differences = ModuleDifferences(module.relative_to(FOLDER).as_posix())
    for item in items:
        axes = _AXES.match(getattr(getattr(item, "callspec", None), "id", ""))
        if axes is None or axes[2] == "smelt":
            yield item
        elif axes[1] != "asyncio":  # C-core reads its sockets itself: the loop makes no difference
            yield _marked(item, axes, differences)
    if differences.unused:
        raise ValueError(f"{module}: no case matches the entries {sorted(differences.unused)}")


def _marked(item: pytest.Item, axes: re.Match[str], differences: ModuleDifferences) -> pytest.Item:
    assert isinstance(item, pytest.Function)
    reason = differences.reason(item.originalname, item.callspec.id[axes.end() :])
    if reason is not None:
        item.add_marker(pytest.mark.skip(reason=f"grpc.aio {reason}"))
    return item
