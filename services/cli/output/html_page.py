"""One HTML file that loads nothing and runs no script: text, tables and plots.

All that it shows is escaped, wherever it is from; a policy in the page forbids scripts and loads
besides.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from math import floor, log10
from typing import Any, NamedTuple

import pygal
from pygal.style import CleanStyle

from services.contracts.text.text_table import Table

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:1200px;color:#222}
h1{font-size:1.4rem}h2{font-size:1.2rem;margin-top:2.5rem;border-top:2px solid #ddd}
h3{font-size:1.1rem}p{overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));gap:1rem}
figure{margin:0;max-width:640px}figcaption{font-weight:bold}svg{width:100%;height:auto}
.table{overflow-x:auto;margin:1rem 0}table{border-collapse:collapse;white-space:nowrap}
caption{text-align:left;font-weight:bold;white-space:normal}
th,td{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}
td{white-space:pre}.long{white-space:pre-line;min-width:20rem}th.number,.number{text-align:right}
.warning{color:#a30000}.note{color:#666;font-size:.85rem}
code{display:block;overflow-wrap:anywhere}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Of a cell: what is longer is a sentence.
_LONG = 40
# Characters of labels that stand beside each other below a chart.
_CROWDED = 45
_NUMBER = re.compile(r"[-?]|-?\d[\d.,]*(e[-+]\d+|[x%]| [kMG]?B)?")


class Element(NamedTuple):
    """Text in an element of HTML; the tag and its class are the program's own."""

    tag: str
    text: str
    style: str = ""


class Chart(NamedTuple):
    """Lines by name; on a phone one chart fills the screen's width.

    Attributes:
        lines: a value at each label, None for none; without labels points (x, y), both axes of
            which are logarithmic.
        is_log: whether the values' axis is logarithmic.
        dots: names of lines that are dots alone.
    """

    title: str
    x_title: str
    lines: Mapping[str, Sequence[Any]]
    x_labels: Sequence[str] = ()
    is_log: bool = False
    dots: Sequence[str] = ()

    def svg(self) -> str:
        """As a figure."""
        has_labels = bool(self.x_labels)
        is_log = self.is_log or not has_labels
        chart = (pygal.Line if has_labels else pygal.XY)(
            # By default it loads a script for tooltips.
            js=(),
            width=480,
            height=300 + 20 * len(self.lines),
            x_title=self.x_title,
            include_x_axis=not is_log,
            logarithmic=is_log,
            legend_at_bottom=True,
            legend_at_bottom_columns=1,
            truncate_legend=-1,
            truncate_label=-1,
            x_label_rotation=30 if sum(map(len, self.x_labels)) > _CROWDED else 0,
            value_formatter=lambda number: f"{number:g}",
            x_value_formatter=lambda number: f"{number:g}",
            style=CleanStyle(
                font_family="system-ui, sans-serif",
                label_font_size=13,
                major_label_font_size=13,
                legend_font_size=15,
            ),
        )
        values = [value for line in self.lines.values() for value in line if value is not None]
        if has_labels:
            chart.x_labels = self.x_labels
        else:
            chart.x_labels = _steps([x for x, _ in values])
            values = [y for _, y in values]
        if is_log:
            chart.y_labels = _steps(values)
        for name, line in self.lines.items():
            is_line = name not in self.dots
            chart.add(name, line, stroke=is_line, show_dots=has_labels or not is_line)
        chart.add_xml_filter(_without_scripts)
        svg = chart.render(is_unicode=True, disable_xml_declaration=True)
        return f"<figure><figcaption>{escape(self.title)}</figcaption>{svg}</figure>\n"


Part = str | Element | Table | Chart


def html_page(title: str, parts: Iterable[Part]) -> str:
    """The page; parts that are "" are left out, and charts that follow each other share a row."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
{"".join(_body(parts))}</body></html>
"""


def _body(parts: Iterable[Part]) -> Iterator[str]:
    for are_charts, group in groupby(parts, key=lambda part: isinstance(part, Chart)):
        found = "".join(_html(part) for part in group)
        yield f'<div class="charts">{found}</div>\n' if are_charts else found


def _html(part: Part) -> str:
    if isinstance(part, Chart):
        return part.svg()
    if isinstance(part, Table):
        return _table(part)
    tag, text, style = part if isinstance(part, Element) else ("p", part, "")
    return f'<{tag} class="{style}">{escape(text)}</{tag}>\n' if text else ""


def _table(table: Table) -> str:
    if not table.rows:
        return f"<p>{escape(table.title)}: none</p>\n"
    columns = zip(*table.rows, strict=True)
    are_numbers = [all(map(_NUMBER.fullmatch, column)) for column in columns]
    head = _row("th", table.columns, are_numbers)
    body = "".join(_row("td", row, are_numbers) for row in table.rows)
    caption = f"<caption>{escape(table.title)}</caption>"
    return (
        f'<div class="table"><table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>'
        "</div>\n"
    )


def _row(tag: str, cells: Sequence[str], are_numbers: Sequence[bool]) -> str:
    found = ""
    for text, is_number in zip(cells, are_numbers, strict=True):
        is_long = max(map(len, text.splitlines()), default=0) > _LONG
        style = "number" if is_number else "long" if is_long else ""
        found += f'<{tag} class="{style}">{escape(text)}</{tag}>'
    return f"<tr>{found}</tr>"


def _steps(values: Sequence[float]) -> list[float]:
    """Labels of a logarithmic axis around some values: 1, 2, 5, 10; of many decades 1, 10."""
    low, high = floor(log10(min(values))), floor(log10(max(values)))
    factors = (1, 2, 5) if high - low <= 1 else (1,)
    steps = [factor * 10.0**power for power in range(low, high + 2) for factor in factors]
    first = max(i for i, step in enumerate(steps) if step <= min(values) or not i)
    last = next((i for i, step in enumerate(steps) if step >= max(values)), len(steps) - 1)
    return steps[first : last + 1]


def _without_scripts(root: Any) -> Any:
    """Of an SVG: it has its settings in one, legends as they are."""
    for parent in list(root.iter()):
        for script in parent.findall("script"):
            parent.remove(script)
    return root
