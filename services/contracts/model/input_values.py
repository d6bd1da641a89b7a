"""The numbers and categories that a model's inputs may hold, as its graph shows."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import TypeVar

from pydantic import Field

from services.contracts.model.document import Document
from services.contracts.model.recipe import InputRecipe, InputRole

# Of tables and columns: a recommender has hundreds.
_SHOWN = 4
Category = str | int
# One list for all places, or one for each place of the last axis.
Choices = tuple[tuple[Category, ...], ...]
# The same of ascending numbers: the least and the largest that are drawn, and between them those
# that the graph compares with.
Ranges = tuple[tuple[float, ...], ...]
_T = TypeVar("_T")


def by_place(lists: Sequence[Sequence[_T]]) -> Iterator[tuple[slice, Sequence[_T]]]:
    """Where on the last axis each list counts that is not empty: one alone at all places."""
    for number, known in enumerate(lists):
        if known:
            yield slice(None) if len(lists) == 1 else slice(number, number + 1), known


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


def _within(numbers: tuple[float, ...], least: float, most: float) -> tuple[float, ...]:
    """What is left of a range; empty where that is one number or none."""
    kept = tuple(dict.fromkeys(min(max(number, least), most) for number in numbers))
    return kept if len(kept) > 1 else ()


class InputValues(Document):
    """What a master's graph does with the numbers or categories of one input.

    Attributes:
        role: `mask` where they are cast to or compared with true and false.
        drawn: what proofs draw, where the recipe does not say; empty when the graph does not.
        allowed: what a request may hold; empty where that is anything.
        tables: names of the tables of weights that they are looked up in.
        choices: categories that its encoders know, which proofs draw; an empty list at a place
            that leads to no encoder.
        ranges: of numbers, which proofs draw so that each threshold of a tree is crossed and each
            scaled feature has its usual size; an empty one at a place of which nothing is known.

    Spans, choices and ranges are one for all places, or one for each place of the last axis.
    """

    role: InputRole = InputRole.VALUES
    drawn: tuple[IntegerSpan, ...] = ()
    allowed: tuple[IntegerSpan, ...] = ()
    tables: tuple[str, ...] = ()
    # Left out when there are none: older releases refuse keys that they do not know.
    choices: Choices = Field(default=(), exclude_if=lambda v: v == ())
    ranges: Ranges = Field(default=(), exclude_if=lambda v: v == ())

    def choices_beside(self, own: InputRecipe | None) -> Choices:
        """Those that are drawn: none where a recipe says what else is."""
        is_given = own is not None and (own.values is not None or own.has_range)
        return () if is_given else self.choices

    def ranges_beside(self, own: InputRecipe) -> Ranges:
        """Those that are drawn: between the recipe's least and most, none where it has a range."""
        if own.has_range:
            return ()
        least = -inf if own.min is None else own.min
        most = inf if own.max is None else own.max
        return tuple(_within(each, least, most) for each in self.ranges)

    @property
    def is_described(self) -> bool:
        """Whether choices or a range are known of every place."""
        places = range(max(len(self.choices), len(self.ranges)))
        return bool(places) and all(
            bool(_at(self.choices, each)) or bool(_at(self.ranges, each)) for each in places
        )

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
        if self.choices or self.ranges:
            num = max(len(self.choices), len(self.ranges), len(self.allowed))
            texts = [self._place_text(place) for place in range(num)]
            return "; ".join(texts[:_SHOWN]) + _more(texts) + self.source
        shown = "; ".join(map(str, self.allowed[:_SHOWN])) or "any integer"
        return f"{shown}{_more(self.allowed)}{self.source}"

    def _place_text(self, place: int) -> str:
        if choices := _at(self.choices, place):
            return _choices_text(choices)
        span = str(self.allowed[place % len(self.allowed)]) if self.allowed else "any value"
        drawn = _at(self.ranges, place)
        return f"{span}, drawn from {drawn[0]:.3g} to {drawn[-1]:.3g}" if drawn else span

    @property
    def source(self) -> str:
        """Where bounds come from, as ` (rows of 'word.weight')`; "" when from no table."""
        names = ", ".join(f"'{name}'" for name in self.tables[:_SHOWN])
        more = ", …" if len(self.tables) > _SHOWN else ""
        return f" (rows of {names}{more})" if names else ""


def _more(columns: Sequence[object]) -> str:
    return f"; … in {len(columns)} columns" if len(columns) > _SHOWN else ""


def _at(lists: Sequence[Sequence[_T]], place: int) -> Sequence[_T]:
    """The list of one place, also where one is for all."""
    return lists[place % len(lists)] if lists else ()


def _choices_text(choices: Sequence[Category]) -> str:
    more = ", …" if len(choices) > _SHOWN else ""
    return f"one of {', '.join(map(repr, choices[:_SHOWN]))}{more}"
