"""Turns samples into markdown tables: medians over rounds, CPU as a ratio to the floor."""

import importlib.metadata
import platform
import statistics
from dataclasses import dataclass

FLOOR = "floor: no gateway"
_PACKAGES = ("grpcio", "protobuf", "uvloop", "pyzmq", "numpy")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one measurement is of."""

    variant: str
    payload: str
    concurrency: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement; CPU microseconds are a request's, user plus system."""

    rps: float
    p50_ms: float
    p99_ms: float
    gateway_us: float
    replica_us: float

    @property
    def server_us(self) -> float:
        """CPU of all server processes."""
        return self.gateway_us + self.replica_us


def _median(samples: list[Sample], name: str) -> float:
    return statistics.median(getattr(sample, name) for sample in samples)


def ratio(samples: list[Sample], floors: list[Sample], name: str) -> float:
    """The median of ratios within a round: samples and floors pair by round."""
    pairs = zip(samples, floors, strict=True)
    return statistics.median(getattr(a, name) / getattr(b, name) for a, b in pairs)


def _row(cell: Cell, samples: dict[Cell, list[Sample]]) -> str:
    own = samples[cell]
    floor = samples[Cell(variant=FLOOR, payload=cell.payload, concurrency=cell.concurrency)]
    columns = [
        cell.variant,
        f"{_median(own, 'rps'):.0f}",
        f"{ratio(own, floor, 'rps'):.2f}",
        f"{_median(own, 'p50_ms'):.2f}",
        f"{_median(own, 'p99_ms'):.1f}",
        f"{_median(own, 'gateway_us'):.0f}",
        f"{_median(own, 'replica_us'):.0f}",
        f"{_median(own, 'server_us'):.0f}",
        f"{ratio(own, floor, 'server_us'):.2f}",
    ]
    return "| " + " | ".join(columns) + " |"


def table(payload: str, concurrency: int, samples: dict[Cell, list[Sample]]) -> list[str]:
    cells = [c for c in samples if (c.payload, c.concurrency) == (payload, concurrency)]
    header = (
        "variant",
        "RPS",
        "RPS / floor",
        "p50 ms",
        "p99 ms",
        "gateway us",
        "replica us",
        "server us",
        "CPU / floor",
    )
    return [
        f"### {payload}, concurrency {concurrency}",
        "",
        "| " + " | ".join(header) + " |",
        "|---|" + "---:|" * (len(header) - 1),
        *(_row(cell, samples) for cell in cells),
        "",
    ]


def markdown(samples: dict[Cell, list[Sample]]) -> str:
    """All tables, with versions and the number of rounds."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    rounds = len(next(iter(samples.values())))
    lines = [f"CPython {platform.python_version()}, {versions}; medians of {rounds} rounds.", ""]
    for payload in ("tok", "big"):
        for concurrency in (1, 32, 128):
            lines += table(payload, concurrency, samples)
    return "\n".join(lines)
