"""What a benchmark of two alternating sides measured."""

from pydantic import Field

from services.contracts.model.document import Document


class Ratio(Document):
    """How many times faster a side is than the run's baseline, of pairs of neighbouring calls.

    Attributes:
        median: of the pairs' ratios; of calls that waited, of the middle of what they may take.
        low, high: the 99 % interval of that median; wider where threads waited for a CPU all along.
        num_pairs: that count: those without such waits, where they are enough.
    """

    median: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    num_pairs: int
