"""A board as data: rows of panels with their queries; `grafana.py` writes it for Grafana."""

from dataclasses import dataclass
from enum import StrEnum

from services.telemetry.boards.promql import NAMESPACE, Scope

# What a person may filter by; each is a variable of every board.
VARIABLES = (NAMESPACE, "model", "version", "generation")
BOARD = Scope(variables=VARIABLES)


class Unit(StrEnum):
    """Grafana's names of units."""

    COUNT = "short"
    REQUESTS_PER_S = "reqps"
    OPERATIONS_PER_S = "ops"
    SECONDS = "s"
    SHARE = "percentunit"
    BYTES = "bytes"


class Look(StrEnum):
    """How a panel shows its series: over time, as one number each, or as rows of labels."""

    LINES = "lines"
    NUMBERS = "numbers"
    TABLE = "table"


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query of a panel.

    Attributes:
        legend: what each series is called; `{{label}}` stands for a label's value.
        has_exemplars: show single requests too, each with its trace.
    """

    expr: str
    legend: str = ""
    has_exemplars: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        limit: a value to be seen as a line, such as an objective.
        width: of the 24 columns that a row has.
    """

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    look: Look = Look.LINES
    limit: float | None = None
    width: int = 8


@dataclass(frozen=True, kw_only=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Board:
    """One board; `uid` is its address and never changes."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]


def one(expr: str, legend: str = "") -> tuple[Query, ...]:
    """The queries of a panel that has one."""
    return (Query(expr=expr, legend=legend),)


def line(
    title: str,
    description: str,
    expr: str,
    legend: str,
    *,
    unit: Unit,
    limit: float | None = None,
    width: int = 8,
) -> Panel:
    """A panel that shows the series of one query over time."""
    return Panel(
        title=title,
        description=description,
        unit=unit,
        queries=one(expr, legend),
        limit=limit,
        width=width,
    )


def number(
    title: str,
    description: str,
    expr: str,
    *,
    unit: Unit = Unit.COUNT,
    limit: float | None = None,
    width: int,
) -> Panel:
    """A panel that shows one number as it is now."""
    return Panel(
        title=title,
        description=description,
        unit=unit,
        queries=one(expr),
        look=Look.NUMBERS,
        limit=limit,
        width=width,
    )
