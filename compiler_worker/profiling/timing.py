"""Seconds of every op and kernel from torch's profiler; and its Chrome traces."""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from compiler_worker.profiling.eager_run import NODE_PREFIX
from compiler_worker.profiling.inductor_record import FusedKernel
from compiler_worker.profiling.peaks import timed_s
from compiler_worker.profiling.traffic import DispatchCounter

_NUM_RUNS = 5
# A run of seconds is not repeated that often.
_LEAST_RUNS = 3
_PATIENCE_S = 5.0
_US = 1e-6
# Inductor's C++ names a kernel's graph before the kernel.
_GRAPH = re.compile(r"^graph_\d+_")
_NO_KERNELS = ("Memcpy", "Memset")


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """Some profiled runs of one thing.

    Attributes:
        runs: events of each run, in order of their start.
        num_gpu_kernels: kernels on the GPU in one run; None on a CPU.
    """

    runs: list[list[Any]]
    num_gpu_kernels: int | None


def profiled(calls: Mapping[Path, Callable[[], Any]], device: str) -> list[Profiled]:
    """Profile every call 3 to 5 times, in turns, so that a change of load meets all alike.

    Args:
        calls: what to profile, by the file that the trace of its last run is written to.
        device: of torch.
    """
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    runs: dict[Path, list[list[Any]]] = {trace: [] for trace in calls}
    spent_s = 0.0
    num_runs = 0
    # The first run compiles, allocates and warms caches.
    for call in calls.values():
        call()
    while num_runs < _LEAST_RUNS or (num_runs < _NUM_RUNS and spent_s < _PATIENCE_S):
        num_runs += 1
        for trace, call in calls.items():
            with torch.profiler.profile(activities=activities) as profiler:
                spent_s += timed_s(call, device)
            runs[trace].append(sorted(profiler.events(), key=lambda e: e.time_range.start))
            profiler.export_chrome_trace(str(trace))
    return [
        Profiled(
            runs=each, num_gpu_kernels=len(_gpu_kernels(each[-1])) if device == "cuda" else None
        )
        for each in runs.values()
    ]


def num_kernels(call: Callable[[], Any], device: str) -> int:
    """Of one call: those on a GPU; on a CPU ops that are no views, and generated functions."""
    if device == "cuda":
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA], acc_events=True) as run:
            call()
        return len(_gpu_kernels(run.events()))
    modules: list[str] = []

    def note(_: Any, event: str, called: Any) -> None:
        if event == "c_call":
            modules.append(str(getattr(called, "__module__", "")))

    with DispatchCounter() as counter:
        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
    # No dispatcher sees Inductor's functions; each is the one `kernel` of a module.
    num_generated = sum(name.endswith(".kernel") for name in modules)
    return num_generated + sum(not op.is_free for op in counter.ops)


def node_times(found: Profiled, device: str) -> dict[str, float]:
    """Seconds by node of an eager graph, each in its fastest run."""
    seen: dict[str, list[float]] = defaultdict(list)
    for run in found.runs:
        for event in _host_events(run):
            if event.name.startswith(NODE_PREFIX):
                seen[event.name.removeprefix(NODE_PREFIX)].append(_seconds(event, device))
    return {name: min(times) for name, times in seen.items()}


def kernel_times(
    found: Profiled, kernels: Sequence[FusedKernel], device: str
) -> list[float | None]:
    """Seconds by kernel call, each in its fastest run; None for one that was not seen.

    Args:
        found: what the profiler recorded, run by run.
        kernels: calls of one run, in order.
        device: of torch, `cpu` or `cuda`.
    """
    seen: list[list[float]] = [[] for _ in kernels]
    for run in found.runs:
        events = list(_host_events(run))
        at = 0
        for times, kernel in zip(seen, kernels, strict=True):
            place = _next(events, kernel.name, at)
            if place is not None:
                times.append(_seconds(events[place], device))
                at = place + 1
    return [min(times) if times else None for times in seen]


def _next(events: Sequence[Any], name: str, start: int) -> int | None:
    """Index of the first event of a kernel from `start` on; calls come in their order."""
    wanted = plain_name(name)
    places = range(start, len(events))
    return next((i for i in places if plain_name(events[i].name) == wanted), None)


def plain_name(name: str) -> str:
    """A kernel's name without what code, wrapper and profiler each put around it."""
    if name.startswith("torch.ops."):
        # torch.ops.aten.add.Tensor: the profiler names it without the overload.
        name = name.removeprefix("torch.ops.").rpartition(".")[0]
    return re.split(r"::|\.", _GRAPH.sub("", name))[-1]


def latency_s(calls: Sequence[Callable[[], Any]], device: str) -> list[float]:
    """Seconds of each call's fastest run without the profiler; they take turns."""
    seen: list[list[float]] = [[] for _ in calls]
    spent_s = 0.0
    while len(seen[0]) < _LEAST_RUNS or (len(seen[0]) < _NUM_RUNS and spent_s < _PATIENCE_S):
        for times, call in zip(seen, calls, strict=True):
            # The first after another's run finds its data out of the caches.
            spent_s += timed_s(call, device)
            times.append(timed_s(call, device))
    return [min(times) for times in seen]


def _host_events(run: Sequence[Any]) -> Iterator[Any]:
    return (event for event in run if event.device_type.name == "CPU")


def _gpu_kernels(run: Sequence[Any]) -> list[Any]:
    return [
        event
        for event in run
        if event.device_type.name == "CUDA"
        and not event.is_user_annotation
        and not event.name.startswith((*_NO_KERNELS, NODE_PREFIX))
    ]


def _seconds(event: Any, device: str) -> float:
    """Time on the device; on a GPU that of all kernels that were started within."""
    if device == "cuda":
        return float(event.device_time_total) * _US
    return float(event.time_range.elapsed_us()) * _US
