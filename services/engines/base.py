"""The run half of an engine kind: unavailable_reason, load, run, close.

Replicas use it to serve and the compiler to prove; neither knows more of an engine than
this. `load` gets the very manifest that was published and refuses bytes that are for
another device before it deserialises any of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import EngineManifest, MasterRecord


@dataclass(frozen=True, kw_only=True)
class LoadSpec:
    """What `load` reads: files are in place and their digests were verified.

    Attributes:
        directory: folder with the engine's own files, named as in the manifest.
        master_path: the master's `model.onnx`, its external data beside it.
        device: facts of the device that will run the engine.
        num_threads: threads of a CPU engine; 0 leaves it to the library.
    """

    manifest: EngineManifest
    master: MasterRecord
    directory: Path
    master_path: Path
    device: DeviceFacts
    num_threads: int = 0


class Engine(Protocol):
    """A loaded engine. `run` may be called from one thread at a time.

    Attributes:
        name: what computes, for people.
    """

    name: str

    # Of the class: asked before anything is loaded, and without importing the library.
    @classmethod
    def unavailable_reason(cls) -> str:
        """Why this kind cannot run in this process (a missing library), or ""."""
        ...

    @classmethod
    def load(cls, spec: LoadSpec) -> Self:
        """Load an engine and make it ready to run.

        Raises:
            EngineIncompatibleError: for another generation, driver or library version; says
                found, wanted and the command that builds the right one.
            EngineError: the library failed; its words are in the message.
        """
        ...

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs. Arrays have the master's names, datatypes and shapes, of any rank.

        Raises:
            InvalidRequestError: a tensor is missing or has a wrong datatype or shape, or
                lies outside every bucket of an engine that has only buckets.
            EngineError: the library failed.
        """
        ...

    def close(self) -> None:
        """Release device memory; a second call does nothing."""
        ...
