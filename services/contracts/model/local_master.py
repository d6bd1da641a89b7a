"""A master on this disk, before it is published."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.input_values import InputValues
from services.contracts.model.manifest import BlobRef, MasterRecord


@dataclass(frozen=True, kw_only=True)
class LocalMaster:
    """As `MasterRecord`, with paths where that has blobs.

    Attributes:
        digest: canonical digest over normalised graph and weights.
        files: path by file name; `model.onnx` is the entry, others are external data.
        opset: version of the default domain.
        num_parameters: elements over all initialisers.
        input_values: by input, the integers that its graph takes.
    """

    digest: str
    files: Mapping[str, Path]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int
    num_parameters: int
    input_values: Mapping[str, InputValues] = field(default_factory=dict)


def master_record(opened: LocalMaster, files: Mapping[str, BlobRef]) -> MasterRecord:
    """The record of a master, with the blobs of those of its files that are stored."""
    return MasterRecord(
        digest=opened.digest,
        files=dict(files),
        inputs=opened.inputs,
        outputs=opened.outputs,
        opset=opened.opset,
        num_parameters=opened.num_parameters,
        input_values=dict(opened.input_values),
    )
