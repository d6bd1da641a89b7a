"""Runs one bucket of a master twice, op by op and compiled, and keeps what is seen of both."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from compiler_worker.builders.failures import build_errors, check_available, recorded_warnings
from compiler_worker.builders.graphs import fx_graph
from compiler_worker.builders.inductor_builder import InductorBuilder, inductor_config
from compiler_worker.builders.typed_graphs import check_ranges
from compiler_worker.inputs.sampling import draw_sample
from compiler_worker.profiling.accounts import CompiledRun, EagerRun
from compiler_worker.profiling.compiled import Compiled, compiled, exported
from compiler_worker.profiling.eager_run import dispatched_ops, named_run, plain_run
from compiler_worker.profiling.peaks import measured_peaks
from compiler_worker.profiling.profile_request import TRACE_COMPILED, TRACE_EAGER, ProfileRequest
from compiler_worker.profiling.timing import (
    Profiled,
    kernel_times,
    latency_s,
    node_times,
    profiled,
)
from compiler_worker.profiling.traffic import Dispatched
from compiler_worker.progress import Progress
from services.contracts.hardware.kinds import Precision
from services.engines.shapes import union_of
from services.engines.torch_runtime.full_precision import use_full_fp32
from services.engines.torch_runtime.torch_arrays import tensor_from_array

_DTYPES = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was seen of a graph, before and after.

    Attributes:
        imported: the graph as it was imported.
        compiled: the graph as Inductor got it, and its kernels.
        rewrites: how often each rewrite applied between the two.
        eager_s, compiled_s: latency of one run without the profiler.
        num_gpu_kernels: before and after; None on a CPU.
        num_runs: profiled runs of each.
    """

    imported: EagerRun
    compiled: CompiledRun
    rewrites: dict[str, int]
    eager_s: float
    compiled_s: float
    num_gpu_kernels: tuple[int | None, int | None]
    num_runs: int


def measured(request: ProfileRequest, progress: Progress) -> Measured:
    """Run and compile; traces are left in the request's folder.

    Raises:
        BuildUnavailableError: this machine has no Inductor engine in that precision.
        BuildError: a bucket lacks a dimension, or Inductor failed.
        UnsupportedGraphError: the graph holds something that is not translated.
    """
    generation = request.device.parsed_generation
    reason = InductorBuilder().unavailable_reason(generation, request.precision)
    if request.precision.is_calibrated:
        reason = reason or f"a profile has no samples to calibrate {request.precision} with"
    check_available(reason, "such an engine")
    check_ranges(request.master.inputs, union_of(request.buckets))
    use_full_fp32()
    # They are for the builder of an engine, and stand in its proof.
    with recorded_warnings():
        return _Subject(request, progress).measured()


class _Subject:
    """The graph that is run both ways, and what it is run with."""

    def __init__(self, request: ProfileRequest, progress: Progress) -> None:
        self._request = request
        self._progress = progress
        self._device = request.device.parsed_generation.platform.value
        self._dtype = _DTYPES.get(request.precision, torch.float32)
        sizes = {name: dim.max for name, dim in request.bucket.dims.items()}
        # First: what it refuses has no tensors either, strings for one.
        progress("importing the master")
        module = fx_graph(request.master_path, request.precision)
        sample = draw_sample(request.master, request.recipe, request.bucket, sizes)
        specs = request.master.inputs
        self._inputs = tuple(
            tensor_from_array(sample.inputs[spec.name]).to(self._device) for spec in specs
        )
        progress("exporting and rewriting")
        with build_errors("torch.export failed"):
            self._programs = exported(module, specs, union_of(request.buckets), sizes, self._device)

    def measured(self) -> Measured:
        """Run it op by op, compile it, run that."""
        self._progress("counting the ops of eager PyTorch")
        peaks = measured_peaks(self._device, self._dtype)
        module: Any = self._programs.imported.module()
        given: Any = self._programs.given.module() if self._programs.rewrites else module
        # Once where nothing was rewritten: both are one graph then.
        dispatched = [dispatched_ops(each, self._inputs) for each in dict.fromkeys((module, given))]
        self._progress("compiling")
        made = self._compiled()
        self._progress("running it op by op and compiled")
        before, *between, after = profiled(self._calls(module, given, made), self._device)
        imported = self._eager_run(module, dispatched[0], before)
        rewritten = self._eager_run(given, dispatched[-1], (between or [before])[0])
        # Apart from the profiled runs, which its hooks make slower, op by op most of all.
        eager_s, compiled_s = latency_s([plain_run(module, self._inputs), made.call], self._device)
        # Twice, as others may have worked here at one of the times.
        peaks = peaks.best(measured_peaks(self._device, self._dtype))
        times_s = kernel_times(after, made.kernels, self._device)
        return Measured(
            imported=imported,
            compiled=CompiledRun(
                given=rewritten, kernels=made.kernels, times_s=times_s, peaks=peaks
            ),
            rewrites=self._programs.rewrites,
            eager_s=eager_s,
            compiled_s=compiled_s,
            num_gpu_kernels=(before.num_gpu_kernels, after.num_gpu_kernels),
            num_runs=len(before.runs),
        )

    def _calls(
        self, module: torch.fx.GraphModule, given: torch.fx.GraphModule, made: Compiled
    ) -> dict[Path, Callable[[], Any]]:
        """What is profiled, by the file of its trace; the one between is not kept."""
        calls = {self._request.out / TRACE_EAGER: named_run(module, self._inputs)}
        if given is not module:
            calls[self._request.workspace / TRACE_EAGER] = named_run(given, self._inputs)
        return {**calls, self._request.out / TRACE_COMPILED: made.call}

    def _eager_run(
        self, module: torch.fx.GraphModule, dispatched: list[Dispatched], found: Profiled
    ) -> EagerRun:
        times_s = node_times(found, self._device)
        return EagerRun(graph=module.graph, dispatched=dispatched, times_s=times_s)

    def _compiled(self) -> Compiled:
        config = inductor_config(self._request.device.parsed_generation)
        folder = self._request.workspace
        with build_errors("Inductor failed"):
            return compiled(self._programs.given, self._inputs, config, folder, self._device)
