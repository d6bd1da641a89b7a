"""The inside of the process that profiles: look, measure, write the files; then it ends."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from compiler_worker.children.child import Events, limit_threads
from compiler_worker.children.requests import Stage
from compiler_worker.profiling.profile_report import (
    EagerOp,
    KernelCall,
    ProfileFiles,
    ProfileReport,
    Side,
    SourceReport,
)
from compiler_worker.profiling.profile_request import (
    PICTURE,
    REPORT,
    TRACE_COMPILED,
    TRACE_EAGER,
    ProfileRequest,
)
from services.contracts.hardware.facts import Platform
from services.engines.caches.compile_cache import use_compile_cache
from services.engines.device.toolchain import installed_toolchain

if TYPE_CHECKING:
    from compiler_worker.profiling.measure import Measured

_ROUTES = {
    Platform.CPU: "by AOTInductor, for all sizes of the buckets, as an engine is",
    Platform.CUDA: "by Inductor, for these sizes, as an engine is; run without a CUDA graph",
}


def profile_one(request: ProfileRequest, events: Events) -> ProfileReport:
    """Profile, and leave report, traces and picture in the request's folder.

    Raises:
        InvalidModelError: the source is none, or the importer refuses the master.
        BuildUnavailableError: this machine has no Inductor engine in that precision.
        BuildError: Inductor failed.
    """
    limit_threads(request.num_threads)
    # Else the profiler writes a line to standard error at each start and end.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    use_compile_cache(request.cache_dir)
    with events.stage(Stage.PROFILE):
        # The source first: it is soonest done, and most often wrong.
        source = _explained(request, events)
        report = _report(request, _measured(request, events), source)
        _write(report)
    return report


def _explained(request: ProfileRequest, events: Events) -> SourceReport | None:
    if not request.source:
        return None
    from compiler_worker.profiling.breaks import source_report

    events.line(f"tracing {request.source}")
    return source_report(request.source)


def _measured(request: ProfileRequest, events: Events) -> "Measured":
    import torch

    from compiler_worker.profiling.measure import measured

    if request.num_threads:
        torch.set_num_threads(request.num_threads)
    return measured(request, events.line)


def _report(
    request: ProfileRequest, found: "Measured", source: SourceReport | None
) -> ProfileReport:
    import torch

    from compiler_worker.profiling.accounts import eager_ops, graph_ops, kernel_calls

    before = tuple(eager_ops(found.imported))
    ops = tuple(graph_ops(found.compiled))
    kernels = tuple(kernel_calls(found.compiled, ops))
    platform = request.device.parsed_generation.platform
    return ProfileReport(
        model=request.model,
        version=request.version,
        master_digest=request.master.digest,
        precision=request.precision,
        bucket=request.bucket.label,
        sizes={name: dim.max for name, dim in request.bucket.dims.items()},
        generation=request.device.generation,
        device_name=request.device.name,
        toolchain=installed_toolchain(platform),
        num_threads=torch.get_num_threads(),
        num_runs=found.num_runs,
        compiled_as=_ROUTES[platform],
        peaks=found.compiled.peaks,
        before=_before(found, before),
        after=_after(found, kernels),
        rewrites=found.rewrites,
        eager_ops=before,
        ops=ops,
        kernels=kernels,
        source=source,
        files=_files(request.out),
    )


def _files(out: Path) -> ProfileFiles:
    return ProfileFiles(
        report=str(out / REPORT),
        trace_eager=str(out / TRACE_EAGER),
        trace_compiled=str(out / TRACE_COMPILED),
        picture=str(out / PICTURE),
    )


def _before(found: "Measured", ops: tuple[EagerOp, ...]) -> Side:
    dispatched = found.imported.dispatched
    num_views = sum(op.is_free for op in dispatched)
    # With its views: on a CPU they take time to dispatch, which is part of what eager costs.
    time_s = sum(op.time_s or 0.0 for op in ops)
    return Side(
        num_ops=len(dispatched) - num_views,
        num_views=num_views,
        num_gpu_kernels=found.num_gpu_kernels[0],
        num_bytes=sum(op.num_bytes for op in ops),
        num_flops=sum(op.num_flops for op in ops),
        time_s=time_s,
        latency_s=found.eager_s,
        roofline_share=_share(found, [(op.num_flops, op.num_bytes) for op in ops], time_s),
    )


def _after(found: "Measured", kernels: tuple[KernelCall, ...]) -> Side:
    time_s = sum(kernel.time_s or 0.0 for kernel in kernels)
    work = [(kernel.num_flops, kernel.num_bytes or 0) for kernel in kernels]
    return Side(
        num_ops=len(kernels),
        num_gpu_kernels=found.num_gpu_kernels[1],
        num_bytes=sum(num_bytes for _, num_bytes in work),
        num_flops=sum(num_flops for num_flops, _ in work),
        time_s=time_s,
        latency_s=found.compiled_s,
        roofline_share=_share(found, work, time_s),
    )


def _share(found: "Measured", work: list[tuple[int, int]], time_s: float) -> float | None:
    """Share of the time that all parts would take at the peaks, one after another."""
    peaks = found.compiled.peaks
    return sum(peaks.ideal_s(*each) for each in work) / time_s if time_s > 0 else None


def _write(report: ProfileReport) -> None:
    from compiler_worker.profiling.picture import time_per_op

    Path(report.files.picture).write_text(time_per_op(report), encoding="utf-8")
    Path(report.files.report).write_text(report.model_dump_json(indent=1), encoding="utf-8")
