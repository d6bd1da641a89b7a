"""The integers that a model's inputs may hold, as its graph shows."""

from services.contracts.model.document import Document
from services.contracts.model.recipe import InputRole

# Of tables and columns: a recommender has hundreds.
_SHOWN = 4


class IntegerSpan(Document):
    """A range of integers, both ends allowed; None where there is no end."""

    min: int | None = None
    max: int | None = None

    def __str__(self) -> str:
        """As `0 to 9`."""
        low, high = ("any" if end is None else end for end in (self.min, self.max))
        return f"{low} to {high}"

    def within(self, other: "IntegerSpan") -> "IntegerSpan":
        """What lies in both."""
        lows = [end for end in (self.min, other.min) if end is not None]
        highs = [end for end in (self.max, other.max) if end is not None]
        return IntegerSpan(min=max(lows, default=None), max=min(highs, default=None))


class InputValues(Document):
    """What a master's graph does with the integers of one input.

    Attributes:
        role: `mask` where they are cast to or compared with true and false.
        drawn: what proofs draw, where the recipe does not say; empty when the graph does not.
        allowed: what a request may hold; empty where that is anything.
        tables: names of the tables of weights that they are looked up in.

    Spans are one for all places, or one for each place of the last axis.
    """

    role: InputRole = InputRole.VALUES
    drawn: tuple[IntegerSpan, ...] = ()
    allowed: tuple[IntegerSpan, ...] = ()
    tables: tuple[str, ...] = ()

    @property
    def widest(self) -> IntegerSpan:
        """The least span around all that is allowed."""
        lows = [span.min for span in self.allowed if span.min is not None]
        highs = [span.max for span in self.allowed if span.max is not None]
        return IntegerSpan(
            min=min(lows) if lows and len(lows) == len(self.allowed) else None,
            max=max(highs) if highs and len(highs) == len(self.allowed) else None,
        )

    @property
    def words(self) -> str:
        """As `0 to 9 (rows of 'word.weight')`."""
        if self.role is InputRole.MASK:
            return "a mask of 0 and 1"
        shown = "; ".join(map(str, self.allowed[:_SHOWN])) or "any integer"
        if len(self.allowed) > _SHOWN:
            shown += f"; … in {len(self.allowed)} columns"
        return f"{shown}{self.source}"

    @property
    def source(self) -> str:
        """Where bounds come from, as ` (rows of 'word.weight')`; "" when from no table."""
        names = ", ".join(f"'{name}'" for name in self.tables[:_SHOWN])
        more = ", …" if len(self.tables) > _SHOWN else ""
        return f" (rows of {names}{more})" if names else ""
