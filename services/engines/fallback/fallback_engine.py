"""The fallback: the master compiled by torch on the replica's own device, when no engine fits.

The graph comes as an exported program, so Dynamo, the half of torch.compile that traces
Python and guards what it traced, has nothing to do here. Only its compiler, Inductor, runs,
once and inside `load`, with dynamic shapes. What it returns has no guards, hence nothing
that could ask for a recompilation in a request; shapes outside the buckets are refused.
"""

import logging
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Self

from services.contracts.errors import EngineError
from services.contracts.hardware.facts import DeviceFacts, Platform
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, DimRange
from services.engines.caches.host_lock import host_turn
from services.engines.device.toolchain import missing_reason
from services.engines.guarded import GuardedEngine, library_errors
from services.engines.request_check import Sizes
from services.engines.shapes import check_within, zeros_at

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

logger = logging.getLogger(__name__)

Graph = Callable[..., Sequence["torch.Tensor"]]
_CXX = "g++"


class FallbackMode(StrEnum):
    """How the fallback computes."""

    COMPILED = "compiled"
    EAGER = "eager"


@dataclass(frozen=True, kw_only=True)
class FallbackSpec:
    """What the fallback is made of.

    Attributes:
        program_path: the master as an exported program (`.pt2`).
        buckets: shapes to warm up. Requests are bounded by what the program was exported for.
        num_threads: threads on a CPU; 0 leaves it to torch.
    """

    program_path: Path
    master: MasterRecord
    buckets: tuple[Bucket, ...]
    device: DeviceFacts
    num_threads: int = 0


class FallbackEngine(GuardedEngine):
    """The master on torch.

    Attributes:
        mode: compiled, or eager where nothing can be compiled.
        reason: why it is eager; "" when it is compiled.
    """

    def __init__(
        self,
        spec: FallbackSpec,
        graph: Graph,
        ranges: Mapping[str, DimRange],
        reason: str,
        weights: Iterable["torch.nn.Parameter"],
    ) -> None:
        """Take a graph that is loaded.

        Args:
            spec: master, buckets and device.
            graph: from the input tensors, in the master's order, to the outputs.
            ranges: least and largest size of each dynamic dimension, which the program was exported
                for.
            reason: why the graph is not compiled; "" where it is.
            weights: of the graph, which nothing else uses; emptied when the engine closes.
        """
        super().__init__(spec.master.inputs, spec.master.outputs, spec.buckets)
        self._graph: Graph | None = graph
        self._ranges = ranges
        self._weights = tuple(weights)
        self.mode = FallbackMode.EAGER if reason else FallbackMode.COMPILED
        self.name = "eager torch" if reason else "torch.compile"
        self.reason = reason

    @classmethod
    def unavailable_reason(cls) -> str:
        """Why torch cannot be used here, or ""."""
        return missing_reason("torch")

    @classmethod
    def load(cls, spec: FallbackSpec) -> Self:
        """Compile for this device and warm up every bucket; takes seconds to minutes.

        Raises:
            EngineError: the program cannot be read, or fails at a shape of a bucket, as one does
                that takes an element of what is empty. A compiler that is missing or fails is no
                error: the mode is then eager.
        """
        import torch

        from services.engines.torch_runtime.full_precision import use_full_fp32
        from services.engines.torch_runtime.programs import program_on, ranges_of

        # Before compiling: Inductor reads the switches while it generates code.
        use_full_fp32()
        if spec.num_threads:
            torch.set_num_threads(spec.num_threads)
        device = _torch_device(spec.device)
        with library_errors(f"the fallback failed to load {spec.program_path.name}"):
            program = program_on(spec.program_path, device)
            ranges = ranges_of(program, spec.master.inputs)
        # Of the graph, and first: it raises where compiled code would read beyond an empty tensor.
        _check_empty(program, spec, device)
        with library_errors(f"the fallback failed to compile {spec.program_path.name}"):
            graph, reason = _compiled_or_eager(program, spec, device)
        graph = _on_device(graph, device)
        engine = cls(spec, graph, ranges, reason, program.parameters())
        # Here: no request pays for what is initialised late, and a shape that fails is found.
        _warm_up(engine, spec)
        return engine

    def _compute(self, arrays: list[Array], sizes: Sizes) -> Sequence[Array]:
        import torch

        from services.engines.torch_runtime.torch_arrays import array_from_tensor, tensor_from_array

        assert self._graph is not None
        # The code has no guards that would refuse other sizes: it would compute something.
        check_within(self._ranges, sizes)
        # Grad mode belongs to the thread, and the graph was compiled without it.
        with torch.no_grad():
            outputs = self._graph(*(tensor_from_array(array) for array in arrays))
        return [array_from_tensor(tensor) for tensor in outputs]

    def _release(self) -> None:
        self._graph = None
        # The modules of a program are cycles: a collector finds them late, and what it is to leave
        # alone (`gc.freeze`) never.
        for weight in self._weights:
            weight.data = weight.data.new_empty(0)
        self._weights = ()


def corners_of(buckets: Sequence[Bucket]) -> list[Sizes]:
    """Every combination of smallest and largest sizes, each once; `[{}]` for a static model.

    Where a dimension begins at 0, its smallest are 0 and 1: compilers like to fix either.
    """
    corners: list[Sizes] = []
    for bucket in buckets:
        ends = [sorted({dim.min, max(dim.min, 1), dim.max}) for dim in bucket.dims.values()]
        corners += [dict(zip(bucket.dims, sizes, strict=True)) for sizes in product(*ends)]
    return [sizes for i, sizes in enumerate(corners) if sizes not in corners[:i]]


def _check_empty(program: "ExportedProgram", spec: FallbackSpec, device: str) -> None:
    """Refuse a graph that fails on empty tensors: compiled code may read what is not its own.

    Raises:
        EngineError: it fails, and which bucket has to begin at 1.
    """
    import torch

    from services.engines.torch_runtime.torch_arrays import tensor_from_array

    empty = [sizes for sizes in corners_of(spec.buckets) if not all(sizes.values())]
    graph = _on_device(_unguarded(program), device) if empty else None
    for sizes in empty:
        assert graph is not None
        try:
            with torch.no_grad():
                graph(*(tensor_from_array(zeros_at(each, sizes)) for each in spec.master.inputs))
        except Exception as error:
            raise EngineError(
                f"the graph fails on empty tensors, at {sizes}: {type(error).__name__}: {error}; "
                "begin the buckets of the recipe at 1 there"
            ) from error


def _warm_up(engine: FallbackEngine, spec: FallbackSpec) -> None:
    """Run every corner once; raises EngineError with the sizes at which the graph fails."""
    for sizes in corners_of(spec.buckets):
        try:
            engine.run({each.name: zeros_at(each, sizes) for each in spec.master.inputs})
        except EngineError as error:
            raise EngineError(
                f"the graph fails at {sizes}: {error}; give the recipe buckets of sizes that it "
                "computes"
            ) from error


def _torch_device(device: DeviceFacts) -> str:
    import torch

    if device.parsed_generation.platform is Platform.CPU:
        return "cpu"
    # With its index: an exported program compares devices by name, and `cuda` is not `cuda:0`.
    return f"cuda:{torch.cuda.current_device()}"


def _on_device(graph: Graph, device: str) -> Graph:
    if device == "cpu":
        return graph
    return lambda *inputs: graph(*(tensor.to(device) for tensor in inputs))


def _compiled_or_eager(
    program: "ExportedProgram", spec: FallbackSpec, device: str
) -> tuple[Graph, str]:
    reason = _no_compiler_reason(spec)
    if not reason:
        try:
            # Replicas of a model start together, and its proofs time the same fallback: torch's
            # cache, which they share, has the code once one of them is done.
            with host_turn(spec.program_path):
                return _compiled(program, device), ""
        except Exception as error:  # whatever Inductor raises, eager still serves
            reason = f"Inductor failed: {type(error).__name__}: {error}"
    logger.warning("fallback runs eagerly: %s", reason)
    return _unguarded(program), reason


def _unguarded(program: "ExportedProgram") -> Graph:
    """The program as a module, for all sizes of its ranges, against which requests are checked.

    Its guards are what the export met at the sizes it traced with, and hold for no others.
    """
    graph: Graph = program.module(check_guards=False)
    return graph


def _no_compiler_reason(spec: FallbackSpec) -> str:
    if spec.device.parsed_generation.platform is Platform.CUDA:
        return missing_reason("triton")
    # Now, as Inductor misses its compiler only after it has lowered the whole graph.
    return "" if shutil.which(_CXX) else f"no C++ compiler: {_CXX} is not on PATH"


def _compiled(loaded: "ExportedProgram", device: str) -> Graph:
    """Inductor's code for a program, with the dynamic dimensions it was exported with."""
    import torch
    from torch._guards import TracingContext, tracing
    from torch._inductor import config, standalone_compile

    from services.engines.caches.compile_cache import keep_headers_in_cache
    from services.engines.torch_runtime.programs import lifted_weights, placeholders, traced_again

    keep_headers_in_cache()
    with torch.no_grad(), warnings.catch_warnings():
        # torch about its own internals, and that less than fp32 would be faster.
        warnings.simplefilter("ignore")
        program = traced_again(loaded, device)
        arguments = [node.meta["val"] for node in placeholders(program)]
        # Ranges of symbols are known to the fake mode of the export; an input shows which that is.
        with (
            tracing(TracingContext(arguments[-1].fake_mode)),
            # It runs where it is compiled, by the flags of this processor; test programs of each
            # instruction set would take seconds in every process. What g++ cannot do leaves it
            # eager.
            config.patch({"cpp.vec_isa_ok": True}),
        ):
            code = standalone_compile(
                program.graph_module, arguments, dynamic_shapes="from_tracing_context"
            )
    # Bound here: in the graph they are arguments in front of the inputs, which requests bring.
    weights = tuple(lifted_weights(program).values())
    return lambda *inputs: code(*weights, *inputs)
