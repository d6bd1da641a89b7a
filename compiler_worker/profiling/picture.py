"""The picture of a profile: time per op before, time per kernel after, as bars on one scale."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from compiler_worker.profiling.profile_report import ProfileReport, short_name

_WIDTH = 1000
_LEFT = 330  # where bars begin; labels end before it
_RIGHT = 870  # where the longest bar ends; values follow it
_ROW = 22
_HEAD = 64
_PANEL = 34
_AXIS = 52
_NUM_ROWS = 14
_LABEL_CHARS = 42
_TITLE_CHARS = 90
_SUBTITLE_CHARS = 130
_NUM_TICKS = 5
_BEFORE = "#b5651d"
_AFTER = "#2a6f97"
_STYLE = (
    "text{font-family:sans-serif;fill:#222}"
    # Of one width per character, so that what is cut to so many cannot reach into the bars.
    ".l{font-size:12px;font-family:monospace;text-anchor:end}"
    ".v{font-size:12px}.h{font-size:14px;font-weight:bold}.t{font-size:16px;font-weight:bold}"
    ".s{font-size:12px;fill:#555}.a{font-size:11px;text-anchor:middle}"
)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One row: calls of one kind and their seconds."""

    label: str
    num_calls: int
    time_s: float


def time_per_op(report: ProfileReport) -> str:
    """The picture, as SVG text."""
    before = bars((short_name(op.target), op.time_s) for op in report.eager_ops if op.num_bytes)
    after = bars((" → ".join(k.chain) or k.name, k.time_s) for k in report.kernels)
    device = f"{report.device_name} ({report.generation})"
    where = f"{report.model} version {report.version}, {report.precision}, {_sizes(report.sizes)}"
    return drawn(
        {"Before: eager PyTorch, per op": before, "After: Inductor, per kernel": after},
        title=f"Time per op: {where}",
        subtitle=f"{device}, the quietest of {report.num_runs} runs",
    )


def bars(timed: Iterable[tuple[str, float | None]]) -> list[Bar]:
    """One bar per label, longest first; what does not fit stands together in the last."""
    times: dict[str, list[float]] = defaultdict(list)
    for label, time_s in timed:
        times[label].append(time_s or 0.0)
    found = [Bar(label=k, num_calls=len(v), time_s=sum(v)) for k, v in times.items()]
    found.sort(key=lambda bar: -bar.time_s)
    shown = found[: _NUM_ROWS - 1]
    rest = found[_NUM_ROWS - 1 :]
    if len(rest) > 1:
        rest = [
            Bar(
                label=f"{len(rest)} others",
                num_calls=sum(bar.num_calls for bar in rest),
                time_s=sum(bar.time_s for bar in rest),
            )
        ]
    return shown + rest


def drawn(panels: Mapping[str, Sequence[Bar]], *, title: str, subtitle: str) -> str:
    """Panels below each other, every row of one height, all on one scale of milliseconds.

    Args:
        panels: bars by the panel's name, from top to bottom.
        title: of the picture.
        subtitle: the line below it.

    Returns:
        The text of an SVG file.
    """
    longest_s = max((bar.time_s for rows in panels.values() for bar in rows), default=0.0)
    full_s = _nice(longest_s or 1e-3)
    scale = (_RIGHT - _LEFT) / full_s
    top = _HEAD
    parts = []
    colours = [_BEFORE, _AFTER]
    for index, (name, rows) in enumerate(panels.items()):
        total_ms = sum(bar.time_s for bar in rows) * 1e3
        parts.append(_text(16, top + 20, "h", f"{name}: {_plain(total_ms)} ms in all"))
        top += _PANEL
        for bar in rows:
            parts += _row(bar, top, scale, colours[index % len(colours)])
            top += _ROW
    height = top + _AXIS
    body = [*_ticks(full_s, scale, top), *parts]
    extent = f'width="{_WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {extent} role="img">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            f'<rect {extent} fill="#fff"/>',
            _text(16, 26, "t", _cut(title, _TITLE_CHARS)),
            _text(16, 46, "s", _cut(subtitle, _SUBTITLE_CHARS)),
            *body,
            "</svg>\n",
        ]
    )


def _row(bar: Bar, top: int, scale: float, colour: str) -> list[str]:
    width = max(bar.time_s * scale, 0.5)
    times = f" x{bar.num_calls}" if bar.num_calls > 1 else ""
    place = f'x="{_LEFT}" y="{top + 3}" width="{width:.1f}" height="{_ROW - 6}"'
    return [
        _text(_LEFT - 8, top + 15, "l", _cut(bar.label, _LABEL_CHARS - len(times)) + times),
        f'<rect {place} fill="{colour}"/>',
        _text(_LEFT + width + 6, top + 15, "v", f"{_plain(bar.time_s * 1e3)} ms"),
    ]


def _ticks(full_s: float, scale: float, bottom: int) -> list[str]:
    """The axis below all panels, its lines behind the bars."""
    lines = []
    for index in range(_NUM_TICKS + 1):
        time_s = full_s * index / _NUM_TICKS
        x = _LEFT + time_s * scale
        lines.append(f'<line x1="{x:.1f}" y1="{_HEAD}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        lines.append(_text(x, bottom + 16, "a", _plain(time_s * 1e3)))
    middle = (_LEFT + _RIGHT) / 2
    return [*lines, _text(middle, bottom + 36, "a", "time in one run, all calls together (ms)")]


def _nice(longest_s: float) -> float:
    """The end of the scale: the next of 1, 2, 2.5, 5, 10 times a power of ten."""
    power = 10.0**-12
    while power * 10 < longest_s:
        power *= 10
    return next(power * step for step in (1, 2, 2.5, 5, 10, 20) if power * step >= longest_s)


def _plain(number: float) -> str:
    """Three digits, more where they stand before the point."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _text(x: float, y: float, kind: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def _cut(text: str, num_chars: int) -> str:
    return text if len(text) <= num_chars else text[: num_chars - 1] + "…"


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sorted(sizes.items())) or "static"
