"""What a person wants to have profiled; light, as the command line's parser holds it."""

from dataclasses import dataclass
from pathlib import Path

from services.contracts.hardware.kinds import Precision


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """What is to be profiled of a model version.

    Attributes:
        bucket: label of one of its buckets; "" is the largest.
        source: a PyTorch source to look for graph breaks in; "" for none.
        out: folder for the files; None names one after the model, in the current folder.
    """

    bucket: str = ""
    precision: Precision = Precision.FP32
    source: str = ""
    out: Path | None = None
