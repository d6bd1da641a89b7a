"""A board as data, read from `*_board.yml`; `grafana.py` writes it for Grafana."""

from enum import StrEnum
from pathlib import Path
from typing import Final

import yaml

from services.contracts.model.document import Document
from services.telemetry.boards.selectors import NAMESPACE, filtered

# What a person may filter by; each is a variable of every board.
VARIABLES: Final = (NAMESPACE, "model", "version", "generation")
_FOLDER: Final = Path(__file__).parent
_NAMES: Final = ("requests", "engines", "builds")


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


class Query(Document):
    """One query of a panel.

    Attributes:
        expr: PromQL without the board's filters.
        legend: what each series is called; `{{label}}` stands for a label's value.
        has_exemplars: show single requests too, each with its trace.
    """

    expr: str
    legend: str = ""
    has_exemplars: bool = False

    @property
    def filtered(self) -> str:
        """The query with the board's filters; raises SmeltError for an unknown series."""
        return filtered(self.expr, VARIABLES)


class Panel(Document):
    """One panel.

    Attributes:
        limit: a value to be seen as a line, such as an objective.
        width: of the 24 columns that a row has.
    """

    title: str
    description: str
    unit: Unit
    look: Look = Look.LINES
    limit: float | None = None
    width: int = 8
    queries: tuple[Query, ...]


class Row(Document):
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


class Board(Document):
    """One board; `uid` is its address and never changes."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]


def read_boards() -> list[Board]:
    """All boards; raises pydantic.ValidationError naming the wrong field."""
    texts = (_FOLDER.joinpath(f"{name}_board.yml").read_text() for name in _NAMES)
    return [Board.model_validate(yaml.safe_load(text)) for text in texts]
