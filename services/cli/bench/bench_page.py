"""What a bench found, as one HTML file that loads nothing."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

import pygal
from pygal.style import CleanStyle

from services.cli.bench.bench_report import (
    COLUMNS,
    PERCENTS,
    bench_warnings,
    cell_texts,
    served_by,
)
from services.contracts.text.words import readable_time

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:1200px;color:#222}
h1{font-size:1.4rem}h2{font-size:1.1rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));gap:1rem}
figure{margin:0}figcaption{font-weight:bold}svg{width:100%;height:auto}
.table{overflow-x:auto}table{border-collapse:collapse;white-space:nowrap}
th,td{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:right}
th:first-child,td:first-child{text-align:left}
.warning{color:#a30000}code{overflow-wrap:anywhere}
"""
_Cell = Mapping[str, Any]
_Lines = Mapping[str, Sequence[float | None]]


def bench_page(document: Mapping[str, Any]) -> str:
    """Figures, plots, the table and where they come from."""
    cells: list[_Cell] = document["cells"]
    title = f"{document['model']}: load over gRPC"
    versions = ", ".join(f"{name} {each}" for name, each in document["versions"].items())
    warnings = "".join(f'<p class="warning">{escape(e)}</p>' for e in bench_warnings(document))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p>{readable_time(document["created_at"])}, {escape(document["address"])},
served by {escape(served_by(cells))}.</p>
{warnings}
<div class="charts">{"".join(_charts(cells))}</div>
<h2>Figures</h2>
<div class="table">{_table(cells)}</div>
<p>Each caller sends its next request when the last one has ended, for {document["seconds"]:g} s.
Latencies are of answered requests.</p>
<p><code>{escape(document["command"])}</code><br>
{escape(versions)}, {document["client_cpus"]} CPUs at the client.</p>
</body></html>
"""


def _charts(cells: list[_Cell]) -> Iterator[str]:
    callers = list(dict.fromkeys(str(cell["callers"]) for cell in cells))
    sizes = {size: list(found) for size, found in groupby(cells, key=lambda cell: cell["size"])}
    rates = {size: [cell["rows_per_s"] for cell in found] for size, found in sizes.items()}
    yield _chart("Rows per second by callers", "callers", callers, rates)
    for name in ("p50", "p99"):
        times = {size: [c["latency_ms"].get(name) for c in found] for size, found in sizes.items()}
        yield _chart(f"Latency by callers, {name} in ms", "callers", callers, times)
    percents = [f"{each:g}" for each in PERCENTS]
    for size, found in sizes.items():
        times = {f"callers: {c['callers']}": list(c["latency_ms"].values()) for c in found}
        yield _chart(f"Latency distribution in ms, {size}", "percent of requests", percents, times)


def _chart(title: str, x_title: str, x_labels: Sequence[str], lines: _Lines) -> str:
    """A figure; on a phone one fills the screen's width."""
    chart = pygal.Line(
        # By default it loads a script for tooltips.
        js=(),
        width=480,
        height=360,
        x_title=x_title,
        include_x_axis=True,
        legend_at_bottom=True,
        legend_at_bottom_columns=1,
        truncate_legend=-1,
        style=CleanStyle(
            font_family="system-ui, sans-serif",
            label_font_size=13,
            major_label_font_size=13,
            legend_font_size=15,
        ),
        value_formatter=lambda number: f"{number:g}",
    )
    chart.x_labels = x_labels
    for name, values in lines.items():
        chart.add(name, values)
    svg = chart.render(is_unicode=True, disable_xml_declaration=True)
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>\n"


def _table(cells: list[_Cell]) -> str:
    head = "".join(f"<th>{each}</th>" for each in ("size", *COLUMNS, "served by"))
    rows = ((cell["size"], *cell_texts(cell), served_by([cell])) for cell in cells)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(each)}</td>' for each in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
