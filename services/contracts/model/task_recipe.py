"""Task metrics that a recipe can name: what an engine is for, beside the distance of its numbers.

Each is measured on the model's real samples, where the version has some, else on the drawn ones
of the proof, and fails the proof below its bound.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from services.contracts.model.document import Document


class TopKTask(Document):
    """Whether a classifier still names the classes that the reference names.

    Attributes:
        metric: chooses this one.
        output: scores, the last axis counts the classes.
        k: how many of the best are compared: 1 for top-1, 5 for top-5.
        min_agreement: least mean share of the engine's k best that are among the reference's.
            One whose reference score lies within twice the largest score error of the k-th is
            a tie and counts; the error only up to what the tolerance explains.
    """

    metric: Literal["top_k"]
    output: str
    k: int = Field(default=1, ge=1)
    min_agreement: float = Field(default=1.0, ge=0, le=1)


class BoxFormat(StrEnum):
    """What the four numbers of a box are."""

    XYXY = "xyxy"
    XYWH = "xywh"
    CXCYWH = "cxcywh"


class BoxTask(Document):
    """Whether boxes still lie where the reference puts them, box by box.

    Attributes:
        metric: chooses this one.
        output: boxes, four numbers on the last axis.
        format: corners, a corner and a size, or a centre and a size.
        min_iou: least mean intersection over union of all boxes that have an area.
    """

    metric: Literal["iou"]
    output: str
    format: BoxFormat = BoxFormat.XYXY
    min_iou: float = Field(default=0.95, ge=0, le=1)


class FunctionTask(Document):
    """A metric of the owner's own, in Python.

    Attributes:
        metric: chooses this one.
        entry: `module:function`, importable where engines are proven, and called there, in the
            proof's own process, as `function(inputs, wanted, found) -> float`: each a list with
            one mapping for each run, from the name of an input or output to its numpy array;
            `wanted` is the reference's, `found` the engine's.
        min_value: least value that passes; more is better.
    """

    metric: Literal["function"]
    entry: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    min_value: float


Task = Annotated[TopKTask | BoxTask | FunctionTask, Field(discriminator="metric")]
