"""What a bench found, as one HTML file that loads nothing."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from services.cli.bench.bench_report import (
    COLUMNS,
    PERCENTS,
    bench_warnings,
    cell_texts,
    served_by,
)
from services.cli.output.html_page import Chart, Element, Part, html_page
from services.contracts.text.text_table import Table
from services.contracts.text.words import readable_time

_Cell = Mapping[str, Any]


def bench_page(document: Mapping[str, Any]) -> str:
    """Figures, plots, the table and where they come from."""
    return html_page(f"{document['model']}: load over gRPC", _parts(document))


def _parts(document: Mapping[str, Any]) -> Iterator[Part]:
    cells: list[_Cell] = document["cells"]
    yield (
        f"{readable_time(document['created_at'])}, {document['address']}, served by "
        f"{served_by(cells)}."
    )
    yield from (Element("p", each, "warning") for each in bench_warnings(document))
    yield from _charts(cells)
    rows = [(cell["size"], *cell_texts(cell), served_by([cell])) for cell in cells]
    yield Table("Figures", ("size", *COLUMNS, "served by"), rows)
    yield (
        "Each caller sends its next request when the last one has ended, for "
        f"{document['seconds']:g} s. Latencies are of answered requests."
    )
    yield Element("code", document["command"])
    versions = ", ".join(f"{name} {each}" for name, each in document["versions"].items())
    yield f"{versions}, {document['client_cpus']} CPUs at the client."


def _charts(cells: list[_Cell]) -> Iterator[Chart]:
    callers = list(dict.fromkeys(str(cell["callers"]) for cell in cells))
    sizes = {size: list(found) for size, found in groupby(cells, key=lambda cell: cell["size"])}
    rates = {size: [cell["rows_per_s"] for cell in found] for size, found in sizes.items()}
    yield Chart("Rows per second by callers", "callers", rates, callers)
    for name in ("p50", "p99"):
        times = {size: [c["latency_ms"].get(name) for c in found] for size, found in sizes.items()}
        yield Chart(f"Latency by callers, {name} in ms", "callers", times, callers)
    percents = [f"{each:g}" for each in PERCENTS]
    for size, found in sizes.items():
        times = {
            f"callers: {c['callers']}": [c["latency_ms"].get(f"p{each}") for each in percents]
            for c in found
        }
        yield Chart(f"Latency distribution in ms, {size}", "percent of requests", times, percents)
