"""The picture of a profile: time per op before, time per kernel after, as bars on one scale."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from compiler_worker.profiling.profile_report import ProfileReport, short_name
from compiler_worker.profiling.report_lines import chain_words, title
from services.contracts.text.svg_chart import svg_chart, svg_text

_NUM_ROWS = 14
_LABEL_CHARS = 42
# Of each row, and of what stands above and below all of them, in pixels.
_ROW = 22
_AROUND = 200


def time_per_op(report: ProfileReport) -> str:
    """The picture, as SVG text."""
    before = bars((short_name(op.target), op.time_s) for op in report.eager_ops if op.num_bytes)
    after = bars((chain_words(k.chain) or k.name, k.time_s) for k in report.kernels)
    panels = {"Before: eager PyTorch, per op": before, "After: Inductor, per kernel": after}
    where = f"{report.device_name}, the fastest of {report.num_runs} runs"
    return drawn(panels, f"{title(report)}\n{where}")


def bars(timed: Iterable[tuple[str, float | None]]) -> list[tuple[str, float]]:
    """A label and its milliseconds, longest first; what does not fit stands together in the last.

    Args:
        timed: a label and seconds, None for a call that was not seen.
    """
    times_s: dict[str, list[float]] = defaultdict(list)
    for label, time_s in timed:
        times_s[label].append(time_s or 0.0)
    ordered = sorted(times_s.items(), key=lambda pair: -sum(pair[1]))
    if len(ordered) > _NUM_ROWS:
        rest = ordered[_NUM_ROWS - 1 :]
        others = f"{len(rest)} others", [time_s for _, each in rest for time_s in each]
        ordered = [*ordered[: _NUM_ROWS - 1], others]
    return [(_label(name, len(each)), 1e3 * sum(each)) for name, each in ordered]


def _label(name: str, num_calls: int) -> str:
    times = f" x{num_calls}" if num_calls > 1 else ""
    num_chars = _LABEL_CHARS - len(times)
    return (name if len(name) <= num_chars else f"{name[: num_chars - 1]}…") + times


def drawn(panels: Mapping[str, Sequence[tuple[str, float]]], heading: str) -> str:
    """All on one scale of milliseconds.

    Args:
        panels: `bars` by name, from top to bottom.
        heading: lines above them.

    Returns:
        An `<svg>` element.
    """
    # The chart's first row is the lowest.
    rows = [(name, *bar) for name, own in panels.items() for bar in own][::-1]
    chart = svg_chart(
        "HorizontalStackedBar",
        width=1000,
        height=_AROUND + _ROW * len(rows),
        title=heading,
        x_title="time in one run, all calls together (ms)",
        explicit_size=True,
        value_formatter=_plain,
    )
    chart.x_labels = [f"{label}: {_plain(time_ms)} ms" for _, label, time_ms in rows]
    for name, own in panels.items():
        total = f"{name}: {_plain(sum(time_ms for _, time_ms in own))} ms in all"
        chart.add(total, [time_ms if of == name else None for of, _, time_ms in rows])
    return svg_text(chart)


def _plain(number: float) -> str:
    """Three digits, more where they stand before the point."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
