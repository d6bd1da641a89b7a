"""A report in words: lines, and tables between them."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

from compiler_worker.profiling.profile_report import (
    KernelCall,
    OpOutcome,
    ProfileReport,
    Side,
    SourceReport,
)
from services.contracts.text.durations import milliseconds
from services.contracts.text.text_table import Table
from services.contracts.text.words import counted, readable_size

_SUMMARY_COLUMNS = ("", "before: eager", "after: compiled", "ratio")
_FUSION_COLUMNS = (
    "calls",
    "ops",
    "kernel",
    "moved before",
    "after",
    "less by",
    "predicted",
    "time before",
    "after",
    "of the roofline",
)
_WIDE = ("calls", "less by", "predicted")
_GB = 1e9
_KERNEL_CHARS = 30
_Number = TypeVar("_Number", int, float)


def report_parts(report: ProfileReport) -> list[str | Table]:
    """The whole report: lines, and tables between them."""
    parts: list[str | Table] = [
        title(report),
        Table("The whole model", _SUMMARY_COLUMNS, summary_rows(report)),
        Table("What was fused", _FUSION_COLUMNS, fusion_rows(report), _WIDE),
        measured_line(report),
        *notes(report),
    ]
    if report.source is not None:
        breaks = [(f"{b.file}:{b.line}", b.reason) for b in report.source.breaks]
        parts += [source_line(report.source), Table("Graph breaks", ("where", "why"), breaks)]
    return [*parts, *file_lines(report)]


def title(report: ProfileReport) -> str:
    """What was profiled, where."""
    sizes = ", ".join(f"{name} {size}" for name, size in sorted(report.sizes.items()))
    return (
        f"{report.model} version {report.version}, {report.precision}, bucket {report.bucket}"
        f"{f' ({sizes})' if sizes else ''} on {report.generation}; compiled {report.compiled_as}"
    )


def measured_line(report: ProfileReport) -> str:
    """What shares of the roofline are shares of."""
    peaks = report.peaks
    return (
        f"this machine in the same run: {peaks.flops_per_s / _GB:.4g} GFLOP/s, "
        f"{peaks.bytes_per_s / _GB:.3g} GB/s ({peaks.measured_by}); {report.num_threads} threads; "
        f"times are the fastest of {report.num_runs} runs"
    )


def summary_rows(report: ProfileReport) -> list[tuple[str, ...]]:
    """The whole model before and after."""
    before = report.before
    after = report.after
    ops = _ratio(before.num_ops, after.num_ops)
    rows: list[tuple[str, ...]] = [
        ("ops dispatched, kernels called", _ops_words(before), str(after.num_ops), ops)
    ]
    if before.num_gpu_kernels is not None and after.num_gpu_kernels is not None:
        rows.append(_row("kernels on the GPU", str, before.num_gpu_kernels, after.num_gpu_kernels))
    return [
        *rows,
        _row("memory traffic", readable_size, before.num_bytes, after.num_bytes),
        _row("FLOPs of products and attention", _flops, before.num_flops, after.num_flops),
        _row("time in ops and kernels", _time, before.time_s, after.time_s),
        _row("latency, not profiled", _time, before.latency_s, after.latency_s),
        (
            "share of the roofline",
            percent(before.roofline_share),
            percent(after.roofline_share),
            "",
        ),
    ]


def _row(
    name: str, shown: Callable[[_Number], str], before: _Number, after: _Number
) -> tuple[str, ...]:
    return name, shown(before), shown(after), _ratio(before, after)


def fusion_rows(report: ProfileReport) -> list[tuple[str, ...]]:
    """Kernels with one chain of ops together, those that take longest first."""
    groups: dict[tuple[tuple[str, ...], bool], list[KernelCall]] = defaultdict(list)
    for kernel in report.kernels:
        groups[kernel.chain or (kernel.name,), kernel.is_extern].append(kernel)
    ordered = sorted(groups.values(), key=lambda calls: -_time_s(calls))
    return [_fusion_row(report, calls) for calls in ordered]


def _fusion_row(report: ProfileReport, calls: Sequence[KernelCall]) -> tuple[str, ...]:
    first = calls[0]
    before = sum(k.eager_bytes for k in calls)
    after = sum(k.num_bytes or 0 for k in calls)
    flops = sum(k.num_flops for k in calls)
    time_s = _time_s(calls)
    predicted = ""
    if first.predicted_gain is not None:
        chain = f"n={first.num_chain_ops} c={first.num_side_inputs}"
        predicted = f"{first.predicted_gain:.2f}x ({chain})"
    return (
        str(len(calls)),
        chain_words(first.chain) or "-",
        short_kernel(first.name),
        readable_size(before),
        readable_size(after),
        _ratio(before, after),
        predicted or "-",
        _time(sum(k.eager_time_s for k in calls)),
        _time(time_s),
        percent(report.peaks.share(flops, after, time_s)),
    )


def short_kernel(name: str) -> str:
    """A kernel's name with its middle left out when it is long; reports have all of it."""
    name = name.removeprefix("aoti_torch_cpu_")
    return name if len(name) <= _KERNEL_CHARS else f"{name[:17]}...{name[-10:]}"


def chain_words(chain: Sequence[str]) -> str:
    """`add x3 → gelu`."""
    runs = [(name, len(list(same))) for name, same in groupby(chain)]
    return " → ".join(f"{name} x{num}" if num > 1 else name for name, num in runs)


def notes(report: ProfileReport) -> list[str]:
    """What else happened to ops than that a kernel computes them; and what figures mean."""
    names: dict[OpOutcome, list[str]] = defaultdict(list)
    for op in report.ops:
        names[op.outcome].append(op.name)
    words = {
        OpOutcome.FOLDED: "computed once, when compiled",
        OpOutcome.SHARED: "equal to an earlier op, computed once for both",
        OpOutcome.UNUSED: "used by no output, removed",
        OpOutcome.SIMPLIFIED: "simplified away",
    }
    lines = [
        f"{len(names[each])} ops {text}: {', '.join(names[each][:5])}"
        f"{', ...' if len(names[each]) > 5 else ''}"
        for each, text in words.items()
        if names[each]
    ]
    if report.rewrites:
        counts = ", ".join(f"{name} {count}" for name, count in report.rewrites.items())
        num = sum(op.outcome is not OpOutcome.FREE for op in report.ops)
        lines.append(
            f"rewritten before it was compiled ({counts}): {num} ops that are no views; the table "
            "of kernels sets these against them"
        )
    meaning = (
        "moved before: inputs and outputs of each op, once each; after: what each kernel's "
        "schedule reads and writes. Above 100 % of the roofline: data came from a cache"
    )
    return [*lines, meaning]


def source_line(source: SourceReport) -> str:
    """How whole the source's graph is."""
    breaks = counted(len(source.breaks), "graph break")
    graphs = counted(source.num_graphs, "graph")
    return f"{source.source}: {breaks}, {graphs} of {source.num_ops} ops together"


def file_lines(report: ProfileReport) -> list[str]:
    """Where the files lie."""
    files = report.files
    return [
        f"report: {files.report}",
        f"traces: {files.trace_eager}, {files.trace_compiled} (open in ui.perfetto.dev)",
        f"picture: {files.picture}",
    ]


def percent(share: float | None) -> str:
    """A share as text."""
    return "-" if share is None else f"{share * 100:.0f} %"


def _ops_words(side: Side) -> str:
    return f"{side.num_ops} (and {side.num_views} views)"


def _time(duration_s: float) -> str:
    return milliseconds(duration_s, decimals=3)


def _flops(num_flops: int) -> str:
    """In the largest unit that gives a number above one."""
    for unit, size in (("GFLOP", _GB), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if num_flops >= size:
            return f"{num_flops / size:.2f} {unit}"
    return f"{num_flops} FLOP"


def _ratio(before: float, after: float) -> str:
    return f"{before / after:.2f}x" if before and after else "-"


def _time_s(calls: Sequence[KernelCall]) -> float:
    return sum(kernel.time_s or 0.0 for kernel in calls)
