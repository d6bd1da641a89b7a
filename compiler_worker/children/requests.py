"""What the compiler and its child processes exchange, as documents.

A request is a file that the child reads; while it works it writes one event per line; its
result is a file too, so that no log line of a library can be taken for a result.
"""

from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import field_serializer

from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.document import Document
from services.contracts.model.input_values import Choices
from services.contracts.model.manifest import (
    EngineManifest,
    FailedSample,
    MasterRecord,
    OutputCheck,
    Proof,
)
from services.contracts.model.recipe import Bucket, Recipe
from services.contracts.selection.joint_run import JointTiming

RESULT_FILE = "result.json"


class Stage(StrEnum):
    """Where a build is; the last one entered stands in its record.

    In `wait` it is another worker's turn; limits on time do not count it.
    """

    WAIT = "wait"
    OPEN = "open"
    BUILD = "build"
    PROVE = "prove"
    BENCHMARK = "benchmark"
    PUBLISH = "publish"
    PROFILE = "profile"


class ImportRequest(Document):
    """Ask the importer whether it takes one master.

    Attributes:
        master_path: the master's `model.onnx`.
    """

    master_path: Path


class ImportVerdict(Document):
    """Whether the importer takes it.

    Attributes:
        refusal: op, opset, node and reason; "" when it takes the graph.
    """

    refusal: str = ""


class BuildRequest(Document):
    """Build one key.

    Attributes:
        master_path: the master's `model.onnx`.
        calibration_path: samples (.npz) for a quantised engine's scales, None for others.
        drawn_by: where those are of traffic, the recipe by which rows are drawn beside them.
        workspace: an empty folder for the engine's files.
        cache_dir: where compilers keep what they may use again.
        num_threads: threads of torch; 0 leaves it to the library.
        compile_cache: what other builds like this one left; None without it.
    """

    key: BuildKey
    master: MasterRecord
    master_path: Path
    calibration_path: Path | None = None
    drawn_by: Recipe | None = None
    workspace: Path
    cache_dir: Path
    num_threads: int
    compile_cache: Path | None = None


class JointEntrant(Document):
    """An engine that is timed beside others.

    Attributes:
        engine_dir: folder with the engine's files.
        held_bytes: what it takes once loaded, as its proof found when it was alone.
    """

    manifest: EngineManifest
    engine_dir: Path
    held_bytes: int

    @property
    def digest(self) -> str:
        """Of the engine."""
        return self.manifest.key.digest()


class ProofRequest(Document):
    """Prove one engine on one device.

    Attributes:
        engine_dir: folder with the engine's files.
        samples_path: real inputs (.npz); None when the model version has none.
        calibration_path: those that a calibrated engine's scales were taken from; else None.
        held_out_path: samples of traffic beside those; None where those are none.
        device: where it runs and is timed.
        cache_dir: where reference outputs are kept.
        worst_path: where the arrays of a failed proof's worst sample go.
        beside: engines of the same master, recipe and buckets that this one is timed beside.
        is_judged: False only times it, as it was proven before.
        benchmark_s: seconds for each side at one shape.
        is_fallback_timed: whether the fallback takes part.
    """

    manifest: EngineManifest
    master: MasterRecord
    master_path: Path
    recipe: Recipe
    engine_dir: Path
    samples_path: Path | None
    calibration_path: Path | None = None
    held_out_path: Path | None = None
    device: DeviceFacts
    cache_dir: Path
    worst_path: Path | None = None
    beside: tuple[JointEntrant, ...] = ()
    is_judged: bool = True
    num_threads: int
    benchmark_s: float
    benchmark_iterations: int
    is_fallback_timed: bool = True


class JointResult(Document):
    """What engines took that were timed together.

    Attributes:
        failed: why engines were not timed that could not be loaded or run, by digest.
        fallback, kernels: as in `Proof`, of the engine that the request is of.
    """

    shapes: tuple[JointTiming, ...]
    failed: dict[str, str]
    fallback: str
    kernels: dict[str, tuple[int, str]]


class ProofResult(Document):
    """The verdict on an engine, and what it took.

    Attributes:
        timed: the engine, beside those that were asked for and run; None of one that failed.
    """

    proof: Proof
    timed: JointResult | None = None


class ReplayRequest(Document):
    """Run the worst sample of a failed proof once more.

    Attributes:
        proof: the engine, and the request that its proof was made with.
        failed: the sample.
        arrays_path: its arrays (.npz); None when they were not kept, and are made again.
    """

    proof: ProofRequest
    failed: FailedSample
    arrays_path: Path | None


class ReplayResult(Document):
    """What an engine gave to a sample that it failed at.

    Attributes:
        checks: of all outputs; one without a name when the engine failed.
        is_drawn_again: inputs and reference were made anew, not read.
    """

    checks: tuple[OutputCheck, ...]
    is_drawn_again: bool


class TrialRequest(Document):
    """Run an owner's ONNX file at small sizes.

    Attributes:
        num_bytes: of its weights.
        choices: by input, the categories that it knows.
        inputs: with a name for each dimension.
        axes: of each axis, the dimensions that may have to be equal.
        has_outputs: whether the shapes of outputs are asked for.
    """

    path: Path
    num_bytes: int
    choices: dict[str, Choices]
    inputs: tuple[TensorSpec, ...]
    axes: tuple[tuple[str, ...], ...]
    has_outputs: bool


class TrialResult(Document):
    """What was seen in runs of a file.

    Attributes:
        groups: dimensions that are equal; None where nothing is computed.
        outputs: by output, what each axis is at two runs of other sizes: a dimension of the inputs,
            the size where that is the same, None where it is neither.
    """

    groups: tuple[tuple[str, ...], ...] | None
    outputs: dict[str, tuple[str | int | None, ...]]


class CheckedFile(Document):
    """An owner's ONNX file, and the master that was made of it alone.

    Attributes:
        classes: by output that is maps in the file, the columns of the master's table.
    """

    path: Path
    master_path: Path
    master: MasterRecord
    classes: dict[str, tuple[str, ...]]


class CheckRequest(Document):
    """Run a model that is added as it is to be served.

    Attributes:
        recipe: what it says of rows and sizes has to be so.
        limits: by dimension, from the source.
        unnamed: dimensions that have no name of the owner's.
        file: compared with its master; None where there is none.
        is_drawn: whether all inputs of its proofs are drawn, as no samples are given.
    """

    master_path: Path
    master: MasterRecord
    recipe: Recipe
    limits: dict[str, DimLimits]
    unnamed: tuple[str, ...]
    file: CheckedFile | None = None
    is_drawn: bool = False

    @field_serializer("recipe")
    def _as_stated(self, recipe: Recipe) -> Any:
        """Without what it does not say: that is found by running the model."""
        return recipe.model_dump(mode="json", exclude_unset=True)


class ServedShapes(Document):
    """What a version is published with.

    Attributes:
        recipe: with buckets where the model does not compute all of those by default.
        remarks: what was taken without being asked for, a line each.
    """

    recipe: Recipe
    buckets: tuple[Bucket, ...]
    remarks: tuple[str, ...] = ()


class VerdictRequest(Document):
    """Compare one master's import with its witness.

    Attributes:
        folder: for what is computed on the way, and the file of kept answers.
        samples_s: seconds from the first sample after which no further one is begun.
    """

    master_path: Path
    master: MasterRecord
    recipe: Recipe
    buckets: tuple[Bucket, ...]
    folder: Path
    samples_s: float
    num_threads: int


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
    """Why a child gave no result; its exit code marks one.

    Attributes:
        error: class of the error.
        message: of the error.
        log_tail: last lines of the builder's own log.
        is_counted: False where a disk was full: the child is not at fault.
    """

    error: str
    message: str
    log_tail: tuple[str, ...] = ()
    is_counted: bool = True
