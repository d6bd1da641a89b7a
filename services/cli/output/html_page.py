"""One HTML file of text, tables and plots. All is escaped; it loads nothing and runs no script."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import floor, log10
from typing import Any, NamedTuple

from services.contracts.text.svg_chart import svg_chart, svg_text
from services.contracts.text.text_table import Table

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:1200px;color:#222}
h1{font-size:1.4rem}h2{font-size:1.2rem;margin-top:2.5rem;border-top:2px solid #ddd}
h3{font-size:1.1rem}p{overflow-wrap:anywhere}
figure{display:inline-block;vertical-align:top;width:min(100%,560px);margin:0}
figcaption{font-weight:bold}svg{width:100%;height:auto}
.table{overflow-x:auto;margin:1rem 0}table{border-collapse:collapse}
caption{text-align:left;font-weight:bold}
td{padding:.3rem .6rem;border-bottom:1px solid #ddd;vertical-align:top;white-space:pre}
td.long{white-space:pre-line;min-width:20rem}td.number{text-align:right}thead{font-weight:bold}
.warning{color:#a30000}.note{color:#666;font-size:.85rem}
code{display:block;overflow-wrap:anywhere}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Of a cell: what is longer is a sentence.
_LONG = 40
_NUMBER = re.compile(r"[-?]|-?\d[\d.,]*(e[-+]\d+|[x%]| h| [kMG]?B)?")


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
        chart = svg_chart(
            "Line" if has_labels else "XY",
            width=480,
            height=300 + 20 * len(self.lines),
            x_title=self.x_title,
            include_x_axis=not is_log,
            logarithmic=is_log,
            # A longer one leaves the axis no width for its title, which is then split forever.
            truncate_label=30,
            x_label_rotation=30 if sum(map(len, self.x_labels)) > 45 else 0,
            value_formatter=lambda number: f"{number:g}",
            x_value_formatter=lambda number: f"{number:g}",
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
        return f"<figure><figcaption>{escape(self.title)}</figcaption>{svg_text(chart)}</figure>\n"


Part = str | Element | Table | Chart


def html_page(title: str, parts: Iterable[Part]) -> str:
    """The page; parts that are "" are left out."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
{"".join(map(_html, parts))}</body></html>
"""


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
    are_numbers = [all(map(_NUMBER.fullmatch, each)) for each in zip(*table.rows, strict=True)]
    head, *rows = (_row(row, are_numbers) for row in (table.columns, *table.rows))
    return (
        f'<div class="table"><table><caption>{escape(table.title)}</caption>'
        f"<thead>{head}</thead><tbody>{''.join(rows)}</tbody></table></div>\n"
    )


def _row(cells: Sequence[str], are_numbers: Sequence[bool]) -> str:
    found = ""
    for text, is_number in zip(cells, are_numbers, strict=True):
        style = "number" if is_number else "long" if max(map(len, text.split("\n"))) > _LONG else ""
        found += f'<td class="{style}">{escape(text)}</td>'
    return f"<tr>{found}</tr>"


def _steps(values: Sequence[float]) -> list[float]:
    """Labels of a logarithmic axis around some values: 1, 2, 5, 10 and so on."""
    powers = range(floor(log10(min(values))) - 1, floor(log10(max(values))) + 2)
    steps = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [step for step in steps if min(values) / 2.5 < step < max(values) * 2.5]
