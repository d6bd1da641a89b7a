"""What is to be profiled, as a person and as the child gets it, and where the files are."""

from dataclasses import dataclass
from pathlib import Path

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import Precision
from services.contracts.model.document import Document
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, Recipe

REPORT = "report.json"
TRACE_EAGER = "trace-eager.json"
TRACE_COMPILED = "trace-compiled.json"
PICTURE = "time-per-op.svg"


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """What a person wants to have profiled of a model version.

    Attributes:
        bucket: label of one of its buckets; "" is the largest.
        source: a PyTorch source to look for graph breaks in; "" for none.
        out: folder for the files; None names one after the model, in the current folder.
    """

    bucket: str = ""
    precision: Precision = Precision.FP32
    source: str = ""
    out: Path | None = None


class ProfileRequest(Document):
    """Profile one bucket of a model version on this machine.

    Attributes:
        master_path: the master's `model.onnx`.
        buckets: all of the model: the compiled code is for them as an engine's is.
        bucket: the one that is run, at its largest sizes.
        source: a PyTorch source to look for graph breaks in; "" for none.
        out: an existing folder for the files.
        workspace: an empty folder, removed afterwards.
    """

    model: str
    version: int
    master: MasterRecord
    master_path: Path
    recipe: Recipe
    precision: Precision
    buckets: tuple[Bucket, ...]
    bucket: Bucket
    device: DeviceFacts
    source: str
    out: Path
    workspace: Path
    cache_dir: Path
    num_threads: int
