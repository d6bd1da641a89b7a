"""Turns samples into tables: Smelt's figures as ratios to each other server's."""

from collections.abc import Mapping, Sequence

from tests.benchmarks.dataplane.servers import SMELT
from tests.benchmarks.transport.report import Cell, Sample, ratio

Samples = Mapping[Cell, list[Sample]]
Load = tuple[str, int]
_FIGURES = {
    "rps": "Requests a second, Smelt's by the other's",
    "server_us": "Server CPU for each request, Smelt's by the other's",
    "p99_ms": "99th percentile of latency, Smelt's by the other's",
}


def cell_of(variant: str, payload: str, concurrency: int) -> Cell:
    """The measurement of a server under a load."""
    return Cell(variant=variant, payload=payload, concurrency=concurrency)


def summary(samples: Samples, loads: Sequence[Load]) -> str:
    """Smelt against each of the others: medians of ratios within a round."""
    others = list(dict.fromkeys(cell.variant for cell in samples if cell.variant != SMELT))
    return "\n".join(_figure(figure, samples, loads, others) for figure in _FIGURES)


def _figure(figure: str, samples: Samples, loads: Sequence[Load], others: Sequence[str]) -> str:
    lines = [
        f"### {_FIGURES[figure]}",
        "",
        f"| payload | concurrency | {' | '.join(others)} |",
        "|---|---:|" + "---:|" * len(others),
    ]
    for load in loads:
        own = samples[cell_of(SMELT, *load)]
        ratios = [ratio(own, samples[cell_of(other, *load)], figure) for other in others]
        cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"| {load[0]} | {load[1]} | {cells} |")
    return "\n".join(lines) + "\n"
