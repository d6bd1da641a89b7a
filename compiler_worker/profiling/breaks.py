"""Where torch.compile has to break the graph of a PyTorch source, and why."""

import importlib
import importlib.util
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import torch

from compiler_worker.master.pytorch_source import PyTorchModel
from compiler_worker.profiling.profile_report import GraphBreak, SourceReport
from services.contracts.errors import InvalidModelError

_BREAK = re.compile(
    r"Graph break in user code at (?P<file>.+):(?P<line>\d+)\n"
    r"Graph Break Reason: (?P<reason>.*?)(\n\nUser code traceback|\Z)",
    re.DOTALL,
)
_WANTED = "expected package.module:function, or FILE.py:function"
_WANTED_RESULT = (
    "expected a PyTorchModel, or a module and its example inputs: (module, (tensor, ...))"
)


def source_report(source: str) -> SourceReport:
    """Trace the module that a source gives, and report what breaks its graph.

    Raises:
        InvalidModelError: the source cannot be imported, fails, or gives something else.
    """
    module, args, kwargs = _module_and_inputs(source)
    trace = _BreakTrace()
    try:
        with torch.no_grad(), trace:
            found = torch._dynamo.explain(module)(*args, **kwargs)  # noqa: SLF001
    except (Exception, SystemExit) as error:  # the owner's code: it may raise anything
        raise InvalidModelError(f"source {source} failed on its inputs: {error!r}") from error
    return SourceReport(
        source=source,
        num_graphs=found.graph_count,
        num_ops=found.op_count,
        # A function that is traced again breaks again, at the same place.
        breaks=tuple(dict.fromkeys(trace.breaks)),
    )


class _BreakTrace(logging.Handler):
    """Reads torch's structured trace while it is entered, which has every break.

    What `explain` returns leaves out those before the first op, and functions that it skips.
    """

    def __init__(self) -> None:
        super().__init__()
        self.breaks: list[GraphBreak] = []
        self._trace = logging.getLogger("torch.__trace")

    def __enter__(self) -> Self:
        self._trace.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._trace.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the records of breaks, and nothing of the others."""
        artifact = getattr(record, "metadata", {}).get("artifact", {})
        if artifact.get("name") != "dynamo_graph_break_reason":
            return
        if found := _BREAK.match(getattr(record, "payload", None) or ""):
            # Where there is a second paragraph, the first only names what was being traced.
            first, _, second = found["reason"].partition("\n\n")
            reason = next(iter((second or first).strip().splitlines()), "")
            self.breaks.append(
                GraphBreak(file=found["file"], line=int(found["line"]), reason=reason)
            )


def _module_and_inputs(source: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    function = _function(source)
    try:
        found = function()
    except (Exception, SystemExit) as error:  # it is the owner's code
        raise InvalidModelError(f"source {source} failed: {error!r}") from error
    if isinstance(found, PyTorchModel):
        return found.module, tuple(found.example_inputs.values()), {}
    match found:
        case (torch.nn.Module() as module, dict() as inputs):
            return module, (), inputs
        case (torch.nn.Module() as module, tuple() | list() as inputs):
            return module, tuple(inputs), {}
        case (torch.nn.Module() as module, torch.Tensor() as tensor):
            return module, (tensor,), {}
        case _:
            raise InvalidModelError(
                f"source {source} gave {type(found).__name__}; {_WANTED_RESULT}"
            )


def _function(source: str) -> Callable[[], object]:
    place, _, name = source.rpartition(":")
    if not place or not name:
        raise InvalidModelError(f"source '{source}': {_WANTED}")
    try:
        module = _file_module(Path(place)) if place.endswith(".py") else _named_module(place)
        function = getattr(module, name)
    except (Exception, SystemExit) as error:  # a module's own code runs when it is imported
        raise InvalidModelError(
            f"source {source} cannot be imported: {error!r}; {_WANTED}"
        ) from error
    if not callable(function):
        raise InvalidModelError(f"source {source} is no function; {_WANTED}")
    return function  # type: ignore[no-any-return]


def _named_module(name: str) -> ModuleType:
    # Looked for in the folder that the user is in, as `python -m` would.
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def _file_module(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A module that looks itself up, as dataclasses do, has to be found.
    sys.modules[path.stem] = module
    # For what lies beside the file.
    sys.path.insert(0, str(path.parent.absolute()))
    spec.loader.exec_module(module)
    return module
