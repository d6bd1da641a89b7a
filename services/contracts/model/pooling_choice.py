"""The words for pooling; an option of the command line has them, so nothing heavy is imported."""

from enum import StrEnum


class Pooling(StrEnum):
    """How the vectors of a text's tokens become the text's.

    `mean`: their mean over the mask. `cls`: that of the first token. `last`: that of the last token
    that the mask has.
    """

    MEAN = "mean"
    CLS = "cls"
    LAST = "last"
