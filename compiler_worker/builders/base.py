"""The build half of an engine kind: from a plan to files, without state.

A builder answers three questions before anything is built (can this machine build it,
with which options, on which toolchain: the last two enter the build key), then builds.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler_worker.builders.failures import check_available
from compiler_worker.progress import Progress
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.compile_caches import CacheScope
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.document import Document
from services.contracts.model.manifest import MasterRecord


@dataclass(frozen=True, kw_only=True)
class BuildSpec:
    """One engine to build.

    Attributes:
        key: complete build key; buckets, precision and generation are read from it.
        master_path: the master's `model.onnx`, its external data beside it.
        calibration_path: the model version's calibration set (.npz); None when it has none.
        drawn: feeds that are calibrated with between those.
        compile_cache: a folder with what builds like this one left for each other, files of any
            name; None without one. It changes how long a build takes and nothing else.
        typed_graphs: where calibrated graphs are kept for the next kind; None keeps none.
    """

    key: BuildKey
    master: MasterRecord
    master_path: Path
    calibration_path: Path | None = None
    drawn: Sequence[Mapping[str, Array]] = ()
    compile_cache: Path | None = None
    typed_graphs: Path | None = None


class BuildResult(Document):
    """What a builder made.

    Attributes:
        files: files to publish by name, all inside the workspace; empty for kinds that run
            the master itself.
        needs_master: whether the run half reads the master.
        findings: the builder's warnings, unchanged.
        duration_s: seconds of the builder alone; the child that ran it adds them.
        peak_memory_bytes: of that child.
    """

    files: dict[str, Path]
    needs_master: bool
    findings: tuple[str, ...] = ()
    duration_s: float = 0.0
    peak_memory_bytes: int = 0


class Builder(ABC):
    """Makes engines of one kind.

    Attributes:
        is_ai_onnx_only: whether the library knows the ops of ai.onnx and no others.
    """

    is_ai_onnx_only = False

    @abstractmethod
    def unavailable_reason(self, generation: Generation, precision: Precision) -> str:
        """Why this machine cannot build that engine, or ""."""

    @abstractmethod
    def options(self, generation: Generation, precision: Precision) -> dict[str, str]:
        """Flags that change the generated code, for the build key."""

    @abstractmethod
    def toolchain(self, generation: Generation) -> dict[str, str]:
        """Version by library that the engine depends on, for the build key."""

    def is_device_bound(self, generation: Generation) -> bool:
        """Whether device name, memory and driver belong into the build key.

        No, where the library chooses kernels when the engine is loaded.
        """
        return False

    def runs_master(self, precision: Precision) -> bool:
        """Whether an engine of that precision is the master itself: nothing is built for it."""
        return False

    def cache_scope(self, key: BuildKey) -> CacheScope | None:
        """What must be equal for a compile cache to be of use; None if the kind keeps none."""
        return None

    def build(self, plan: BuildSpec, workspace: Path, progress: Progress) -> BuildResult:
        """Build into an empty folder.

        Args:
            plan: what to build, and where its inputs are on this host.
            workspace: an empty folder; everything that is to be published is written into it. It
                stays empty where the engine runs the master itself.
            progress: called with each step in words.

        Returns:
            The files to publish, all inside the workspace, and the findings of the library.

        Raises:
            BuildUnavailableError: this machine cannot build it.
            BuildError: a bucket lacks a dimension, or the library refused or failed; its message
                is included.
            UnsupportedGraphError: the graph holds something that is not translated, or cannot be
                had in that precision.
        """
        generation = Generation.parse(plan.key.generation)
        reason = self.unavailable_reason(generation, plan.key.precision)
        check_available(reason, f"an engine of kind {plan.key.kind}")
        return self._build(plan, generation, workspace, progress)

    @abstractmethod
    def _build(
        self, plan: BuildSpec, generation: Generation, workspace: Path, progress: Progress
    ) -> BuildResult:
        """Build what this machine can build."""
