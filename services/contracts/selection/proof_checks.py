"""What a proof measures over all samples of an output together, and how much it would have seen."""

from services.contracts.model.document import Document


class ColumnCheck(Document):
    """An output of floats, each column on its own scale; see `recipe.Tolerance`.

    Attributes:
        column, column_bound: error of the worst column, in spreads of that column.
        place: which column, as "axis 1, index 7"; "" for an output that has no fixed axis.
        gain, gain_bound: how far the slope of found over wanted is from 1.
        num_rows: elements of the column with fewest; 0 when no column varies.
        fault: "" when within bounds, else what was found and allowed.
    """

    output: str
    column: float
    column_bound: float
    place: str
    gain: float
    gain_bound: float
    num_rows: int
    fault: str = ""


class AgreementCheck(Document):
    """An output of integers or booleans: how many elements are as the reference's.

    Attributes:
        share, bound: of equal elements, ties among the values they were made of counted as equal.
        num_elements: of all samples.
    """

    output: str
    share: float
    bound: float
    num_elements: int
    fault: str = ""


class PowerCheck(Document):
    """Which faults the bounds of an output would have refused, had the engine had them.

    Copies of the reference's answers are spoilt in known ways, and judged as an engine's are.

    Attributes:
        refused: names of the faults that would have been refused.
        tightened: those within the bounds, but more than twice as far off as this engine: with
            bounds as tight as it allows they are refused.
        blind: those that would have passed.
        accepted: those of `blind` that the recipe accepts.
        unchanged: those that leave these answers as they are, so that nothing was tried; empty in
            older records.
    """

    output: str
    refused: tuple[str, ...]
    tightened: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()

    @property
    def unaccepted(self) -> tuple[str, ...]:
        """Faults that would pass and that the recipe does not accept."""
        return tuple(name for name in self.blind if name not in self.accepted)
