"""One HTML file that loads nothing and runs no script: text, tables and plots.

All that it shows is escaped, wherever it is from; a policy in the page forbids scripts and loads
besides.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from math import log10
from typing import Any, NamedTuple

import pygal
from pygal.style import CleanStyle

from services.contracts.text.text_table import Table

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:1200px;color:#222}
h1{font-size:1.4rem}h2{font-size:1.2rem;margin-top:2.5rem;border-top:2px solid #ddd}
h3{font-size:1.1rem}p{overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));gap:1rem}
figure{margin:0}figcaption{font-weight:bold}svg{width:100%;height:auto}
.table{overflow-x:auto}table{border-collapse:collapse;white-space:nowrap}
caption{text-align:left;font-weight:bold;white-space:normal}
th,td{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top}
th:first-child,td:first-child,.long{text-align:left}.long{white-space:normal;min-width:20rem}
td{white-space:pre-line}
.warning{color:#a30000}.note{color:#666;font-size:.85rem}
code{display:block;overflow-wrap:anywhere}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Of a cell: what is longer is a sentence.
_LONG = 40


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
        options = {
            # By default it loads a script for tooltips.
            "js": (),
            "width": 480,
            "height": 360,
            "x_title": self.x_title,
            "include_x_axis": bool(self.x_labels) and not self.is_log,
            "logarithmic": self.is_log or not self.x_labels,
            "legend_at_bottom": True,
            "legend_at_bottom_columns": 1,
            "truncate_legend": -1,
            "x_label_rotation": 30 if max(map(len, self.x_labels), default=0) > 6 else 0,
            "value_formatter": lambda number: f"{number:g}",
            "style": CleanStyle(
                font_family="system-ui, sans-serif",
                label_font_size=13,
                major_label_font_size=13,
                legend_font_size=15,
            ),
        }
        chart = pygal.Line(**options) if self.x_labels else pygal.XY(**options)
        if self.x_labels:
            chart.x_labels = self.x_labels
        else:
            chart.x_value_formatter = lambda power: f"{10**power:.3g}"
        for name, values in self.lines.items():
            shown = values if self.x_labels else [(log10(x), y) for x, y in values]
            chart.add(name, shown, stroke=name not in self.dots)
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
    head = "".join(f"<th>{escape(each)}</th>" for each in table.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    caption = f"<caption>{escape(table.title)}</caption>"
    return (
        f'<div class="table"><table>{caption}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>\n"
    )


def _cell(text: str) -> str:
    is_long = max(map(len, text.splitlines()), default=0) > _LONG
    style = ' class="long"' if is_long else ""
    return f"<td{style}>{escape(text)}</td>"


def _without_scripts(root: Any) -> Any:
    """Of an SVG: it has its settings in one, legends as they are."""
    for parent in list(root.iter()):
        for script in parent.findall("script"):
            parent.remove(script)
    return root
