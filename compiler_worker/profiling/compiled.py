"""The master compiled as its Inductor engine is, with a record of what became of its ops."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from compiler_worker.builders.graphs import export_dynamic, export_static
from compiler_worker.builders.inductor_artifacts import compile_static
from compiler_worker.builders.inductor_packages import compile_package
from compiler_worker.fx_rewrites.names import rewrites_for
from compiler_worker.fx_rewrites.rewrite import rewritten
from compiler_worker.profiling.inductor_record import FusedKernel, InductorRecord
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.recipe import DimRange
from services.engines.request_check import Sizes
from services.engines.torch_runtime.programs import lifted_weights

_PACKAGE = "profile.pt2"
_RECORDS = "inductor"
_TALKATIVE = ("debug", "standalone_compile")


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A compiled graph.

    Attributes:
        call: runs it.
        kernels: every kernel call of one run, in order.
    """

    call: Callable[[], Any]
    kernels: list[FusedKernel]


@dataclass(frozen=True, kw_only=True)
class Programs:
    """A graph as it was imported, and as Inductor gets it.

    Attributes:
        rewrites: how often each rewrite applied, those that did.
    """

    imported: ExportedProgram
    given: ExportedProgram
    rewrites: dict[str, int]


def exported(
    module: torch.fx.GraphModule,
    specs: Sequence[TensorSpec],
    ranges: Mapping[str, DimRange],
    sizes: Sizes,
    device: str,
) -> Programs:
    """What an engine is compiled from: for all sizes on a CPU, for one on a GPU; rewritten.

    Args:
        module: the imported graph.
        specs: of its inputs, in order.
        ranges: by dynamic dimension; used on a CPU.
        sizes: by dynamic dimension; used on a GPU.
        device: of torch, `cpu` or `cuda`.
    """

    def export(graph: torch.fx.GraphModule) -> ExportedProgram:
        if device == "cpu":
            # As an engine is: with static sizes Inductor would generate other loops.
            return export_dynamic(graph, specs, ranges)
        return export_static(graph, specs, sizes, device)

    imported = export(module)
    found = rewritten(imported, rewrites_for(device), export)
    applied = {name: count for name, count in found.counts.items() if count}
    return Programs(imported=imported, given=found.program, rewrites=applied)


def compiled(
    program: ExportedProgram,
    inputs: Sequence[torch.Tensor],
    config: Mapping[str, Any],
    folder: Path,
    device: str,
) -> Compiled:
    """Compile with an engine's settings; the kernels name themselves to the profiler.

    Args:
        program: see `exported`.
        inputs: what it is going to be run with, of any shape, in the program's order.
        config: settings of Inductor for the generation.
        folder: an empty folder.
        device: of torch.
    """
    record = InductorRecord(folder / _RECORDS, inputs)
    # Without names of ours in its output a kernel could not be found in the trace.
    options = {**config, **record.options(), "cpp.enable_kernel_profile": True}
    with _without_its_notices():
        if device == "cpu":
            call = _package(program, inputs, options, folder / _PACKAGE)
        else:
            call = _artifact(program, inputs, options)
    return Compiled(call=call, kernels=record.kernels())


def _package(
    program: ExportedProgram, inputs: Sequence[torch.Tensor], options: dict[str, Any], path: Path
) -> Callable[[], Any]:
    compile_package(program, path, options)
    # As an engine is loaded: see services/engines/inductor/inductor_package.py.
    # The last three: not for one thread alone, one runner, the device that the package is for.
    loader = torch._C._aoti.AOTIModelPackageLoader(  # noqa: SLF001
        str(path), "model", False, 1, -1
    )
    return lambda: loader.boxed_run(list(inputs))


def _artifact(
    program: ExportedProgram, inputs: Sequence[torch.Tensor], options: dict[str, Any]
) -> Callable[[], Any]:
    arguments = [*lifted_weights(program).values(), *inputs]
    code = compile_static(program, arguments, options)

    def call() -> Any:
        with torch.no_grad():
            return code(*arguments)

    return call


@contextmanager
def _without_its_notices() -> Iterator[None]:
    """Without log lines on where its debug files are, and that nothing can be saved."""
    loggers = [logging.getLogger(f"torch._inductor.{name}") for name in _TALKATIVE]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
