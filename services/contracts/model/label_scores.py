"""The words for what a classifier's numbers are."""

from enum import StrEnum


class LabelScores(StrEnum):
    """How the numbers of a model's output become scores of its labels.

    `softmax`: a text has one label. `sigmoid`: it may have several, each with a score of its own.
    `none`: the numbers are scores already.
    """

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    NONE = "none"
