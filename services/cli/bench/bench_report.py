"""What a bench found: the figures of one load as plain data, and all of them as text."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np

from services.cli.bench.bench_requests import BenchRequests
from services.cli.bench.closed_loop import LoadResult
from services.contracts.text.text_table import Table

COLUMNS = ("callers", "requests/s", "rows/s", "p50 ms", "p90 ms", "p99 ms", "max ms", "errors")
PERCENTS = (1, 10, 25, 50, 75, 90, 95, 99, 99.9)
# The longest is what a replica that was away costs a caller, which no percentile shows.
_NAMES = (*(f"p{each:g}" for each in PERCENTS), "max")
# Why a bench ended that Ctrl-C ended; else it is a refusal.
INTERRUPTION = "Ctrl-C came"
# An event loop that is busy so much of the time sends no faster.
_MOST_BUSY = 0.9


def cell_document(requests: BenchRequests, num_callers: int, found: LoadResult) -> dict[str, Any]:
    """Rates and latencies of one load's answers, and the number of its errors.

    Args:
        requests: that were sent.
        num_callers: that sent them at the same time.
        found: what was measured.
    """
    answered_ms = 1e3 * np.array(found.latencies_s)
    latencies = np.percentile(answered_ms, (*PERCENTS, 100)).tolist() if answered_ms.size else []
    rate = answered_ms.size / found.elapsed_s
    return {
        "size": requests.size,
        "rows": requests.rows,
        "callers": num_callers,
        "num_answered": answered_ms.size,
        "requests_per_s": rate,
        "rows_per_s": rate * requests.rows,
        "latency_ms": dict(zip(_NAMES, latencies, strict=False)),
        "errors": dict(found.errors),
        "error_details": found.details,
        "client_share": found.client_share,
    }


def bench_text(document: Mapping[str, Any]) -> Iterator[str | Table]:
    """A table for each size, and below them what needs words."""
    for size, cells in groupby(document["cells"], key=lambda cell: cell["size"]):
        found = list(cells)
        title = f"{size}, served by {served_by(found)}"
        yield Table(title, COLUMNS, [cell_texts(cell) for cell in found])
    yield from bench_warnings(document)


def served_by(cells: list[Any]) -> str:
    """Each engine that served, in order."""
    return ", then ".join(dict.fromkeys(each for cell in cells for each in cell["served_by"]))


def cell_texts(cell: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table; `-` where no request was answered."""
    latencies = (cell["latency_ms"].get(name) for name in ("p50", "p90", "p99", "max"))
    return (
        str(cell["callers"]),
        f"{cell['requests_per_s']:.1f}",
        f"{cell['rows_per_s']:.1f}",
        *("-" if each is None else f"{each:.2f}" for each in latencies),
        str(sum(cell["errors"].values())),
    )


def bench_warnings(document: Mapping[str, Any]) -> Iterator[str]:
    """A line for each status code of failed requests, and for what the figures do not show."""
    if document["is_cached"]:
        yield (
            "The model's recipe has response_cache: the gateway answers repeated requests, so "
            "these figures are not the engine's"
        )
    if document.get("ended"):
        of = f"{len(document['cells'])} of {document['num_loads']} loads were measured"
        yield f"{of}; {document['ended']}"
    for cell in document["cells"]:
        where = f"{cell['size']}, callers: {cell['callers']}"
        total = sum(cell["errors"].values()) + cell["num_answered"]
        for code, num in cell["errors"].items():
            details = cell["error_details"][code]
            yield f"{where}: {num} of {total} requests failed: {code}: {details}"
        if cell["client_share"] >= _MOST_BUSY:
            yield (
                f"{where}: this client was busy or waited for a CPU {cell['client_share']:.0%} of "
                "the time and may be the bound; on another host (--address) it takes no CPU of "
                "the fleet's"
            )
