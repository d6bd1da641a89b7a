"""What the compiler and its throw-away children say to each other, as documents.

A request is a file that the child reads; while it works it writes one event per line; its
result is a file too, so that no log line of a library can be taken for a result.
"""

from enum import StrEnum
from pathlib import Path

from services.contracts.build_key import BuildKey
from services.contracts.document import Document
from services.contracts.hardware import DeviceFacts
from services.contracts.manifest import EngineManifest, MasterRecord
from services.contracts.recipe import Recipe

RESULT_FILE = "result.json"


class Stage(StrEnum):
    """Where a build is; the last one entered stands in its record."""

    OPEN = "open"
    BUILD = "build"
    PROVE = "prove"
    BENCHMARK = "benchmark"
    PUBLISH = "publish"


class BuildRequest(Document):
    """Build one key.

    Attributes:
        master_path: the master's `model.onnx`.
        workspace: an empty folder for the engine's files.
        cache_dir: where compilers keep what they may use again.
        num_threads: threads of torch; 0 leaves it to the library.
    """

    key: BuildKey
    master: MasterRecord
    master_path: Path
    workspace: Path
    cache_dir: Path
    num_threads: int


class BuildResult(Document):
    """What a build made.

    Attributes:
        files: paths of the engine's files by name.
        duration_s: seconds of the builder alone.
    """

    files: dict[str, Path]
    needs_master: bool
    findings: tuple[str, ...]
    duration_s: float
    peak_memory_bytes: int


class ProofRequest(Document):
    """Prove one engine on one device.

    Attributes:
        engine_dir: folder with the engine's files.
        samples_path: real inputs (.npz); None when the model version has none.
        device: where it runs and is timed.
        cache_dir: where reference outputs are kept.
    """

    manifest: EngineManifest
    master: MasterRecord
    master_path: Path
    recipe: Recipe
    engine_dir: Path
    samples_path: Path | None
    device: DeviceFacts
    cache_dir: Path
    num_threads: int
    benchmark_s: float
    benchmark_iterations: int


class ChildEvent(Document):
    """One line of a child's progress.

    Attributes:
        stage: the stage that begins, "" for a plain line.
        line: something to show to a person.
        ended_stage, duration_s: a stage that ended and its seconds.
    """

    stage: Stage | None = None
    line: str = ""
    ended_stage: Stage | None = None
    duration_s: float = 0.0


class ChildFailure(Document):
    """Why a child gave no result; its exit code says that there is one.

    Attributes:
        error: class of the error.
        message: its words.
        log_tail: last lines of the builder's own log.
    """

    error: str
    message: str
    log_tail: tuple[str, ...] = ()
