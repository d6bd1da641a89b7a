"""The index of an engine of static code: an artifact per bucket, their weights, the padding."""

from pydantic import Field

from services.contracts.model.document import Document
from services.contracts.model.recipe import Bucket

INDEX = "index.json"
# Weights that the compiler made: those of the master are not stored a second time.
CONSTANTS = "constants.pt"


class WeightRef(Document):
    """One weight argument of an artifact.

    Attributes:
        name: initializer of the master, or key in the engine's own constants.
        datatype: type that the artifact takes; a master's weight is converted to it.
        is_in_master: which of the two it is.
        parts: weights of the master that make it up, side by side along the last axis; then
            the name is of no further use.
        order: axes of the tensor from the outermost in memory to the innermost; () where
            they lie in their own order.
    """

    name: str
    datatype: str
    is_in_master: bool
    parts: tuple["WeightRef", ...] = ()
    order: tuple[int, ...] = ()


class BucketArtifact(Document):
    """Code for the largest sizes of one bucket.

    Attributes:
        file: name of the compiled artifact.
        weights: its leading arguments, the inputs follow.
    """

    file: str
    bucket: Bucket
    weights: tuple[WeightRef, ...]


class ArtifactIndex(Document):
    """The entry of the engine's files.

    Attributes:
        pads: value for padded positions, by input; 0 where none is given.
    """

    artifacts: tuple[BucketArtifact, ...]
    pads: dict[str, float] = Field(default={})
