"""Published forms: masters, model versions, engines, proofs.

masters/<digest>.json                     MasterRecord
models/<name>/versions/<n>.json           ModelVersion
engines/<master digest>/<key digest>/manifest.json        EngineManifest
engines/<master digest>/<key digest>/proofs/<sha256 of the manifest>/<n>.json      Proof
blobs/sha256/<digest>                     bytes

<n> is a number of six digits, from 000001; the newest proof counts. Plans, tasks, build
records, events and joint runs: see `build_plan`, `build_record`, `events` and `joint_run`.
"""

import hashlib
from enum import StrEnum
from operator import not_
from pathlib import Path
from typing import Self

from pydantic import Field

from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.default_buckets import default_buckets
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.document import Document
from services.contracts.model.input_values import InputValues
from services.contracts.model.recipe import Bucket, Recipe, Tolerance
from services.contracts.ratio import Ratio
from services.contracts.selection.fallback_verdict import FallbackVerdict
from services.contracts.selection.proof_checks import AgreementCheck, ColumnCheck, PowerCheck


def _is_none(value: object) -> bool:
    return value is None


class BlobRef(Document):
    """Content-addressed bytes.

    Attributes:
        sha256: hex digest of the bytes, and their name.
        num_bytes: their length.
    """

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    num_bytes: int = Field(ge=0)

    @classmethod
    def of(cls, path: Path) -> Self:
        """Of the bytes of a file."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(sha256=digest, num_bytes=file.tell())

    def is_of(self, path: Path) -> bool:
        """Whether a file is there and has these bytes; one of another size is not read."""
        return path.is_file() and path.stat().st_size == self.num_bytes and self.of(path) == self


class MasterRecord(Document):
    """The portable ONNX master of a model version.

    Attributes:
        digest: canonical digest over normalised graph and weights.
        files: blob by file name; `model.onnx` is the entry, others are external data.
        opset: version of the default domain.
        num_parameters: elements over all initialisers.
        input_values: by input, the integers that its graph takes; none in older records.
    """

    digest: str
    files: dict[str, BlobRef]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int
    num_parameters: int
    # Left out when there are none: older records are read and written as they were.
    input_values: dict[str, InputValues] = Field(default={}, exclude_if=not_)


class TrafficSource(Document):
    """The samples of requests that a version was calibrated with.

    Attributes:
        begins_at, ends_at: of the windows that they are of.
        num_samples: rows that it is calibrated with.
        held_out: rows (.npz) that its proofs compare, none of which it is calibrated with.
        num_held_out: how many those are.
    """

    begins_at: str
    ends_at: str
    num_samples: int
    held_out: BlobRef
    num_held_out: int


class ModelVersion(Document):
    """One numbered version of a named model: a master and the recipe it is served by.

    Attributes:
        source_fingerprint: digest of what the master was made from; the same source need
            not be exported again.
        samples: real inputs (.npz) for task metrics, when the source brings some.
        calibration: real inputs (.npz) for the scales of quantised engines, when the recipe
            names some, or requests were sampled.
        traffic: of a calibration set of samples.
        tokenizer: `tokenizer.json`, of a recipe that has `text`.
        dim_limits: by dimension, from a source that states the sizes that it takes.
        fallback_verdict, fallback_answers: what a fallback is held to (see `kept_answers`); None
            of older versions.
        created_at: ISO 8601, UTC.
    """

    name: str
    version: int
    master: MasterRecord
    recipe: Recipe
    source: str
    source_fingerprint: str
    samples: BlobRef | None = None
    calibration: BlobRef | None = None
    traffic: TrafficSource | None = Field(default=None, exclude_if=_is_none)
    tokenizer: BlobRef | None = Field(default=None, exclude_if=_is_none)
    dim_limits: dict[str, DimLimits] = Field(default={}, exclude_if=not_)
    # Left out when they are not there: older records are read and written as they were.
    fallback_verdict: FallbackVerdict | None = Field(default=None, exclude_if=_is_none)
    fallback_answers: BlobRef | None = Field(default=None, exclude_if=_is_none)
    created_at: str

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The shapes that it is served at: the recipe's, or those by default where it has none.

        Also of what its fallback serves, which could take others: they would be refused as soon
        as an engine takes its place.
        """
        return self.recipe.buckets or default_buckets(
            self.master.inputs, self.recipe.batching.batch_dim, self.dim_limits
        )


class ModelRemoval(Document):
    """That a version is served no more; the version's own document stays as it was.

    Attributes:
        who: asked for it; "" when unknown.
    """

    name: str
    version: int
    who: str = ""
    created_at: str


class ProofOutcome(StrEnum):
    """What is known about an engine's equality to its reference."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not_run"


class OutputCheck(Document):
    """Distance of one output to the reference over the samples of one shape.

    Attributes:
        sizes: the concrete dynamic dimensions.
        rel_l2, max_abs, cosine_distance: largest over the samples (see recipe.Tolerance).
        fault: "" when within bounds, else what was found and allowed.
    """

    bucket: str
    sizes: dict[str, int]
    output: str
    rel_l2: float
    max_abs: float
    cosine_distance: float
    fault: str = ""


class TaskCheck(Document):
    """A task metric: what was measured, its bound, and the verdict."""

    name: str
    value: float
    bound: float
    is_passed: bool
    detail: str = ""


class SideTiming(Document):
    """What one side of a benchmark took at one shape.

    Attributes:
        p50_s, p95_s: seconds per call.
        throughput: samples per second (batch / p50).
        peak_memory_bytes: what it holds once loaded and the most that a run at this shape
            adds, resident or on the device.
        ratio: to the baseline, which is the fallback, or eager where that was not timed; the
            baseline's own is to itself, and shows the noise. None of eager beside the fallback,
            which is called less often, and in older records.
    """

    p50_s: float = Field(gt=0)
    p95_s: float = Field(gt=0)
    throughput: float
    peak_memory_bytes: int = Field(ge=0)
    ratio: Ratio | None = Field(default=None, exclude_if=_is_none)


class Timing(Document):
    """An engine, eager and the fallback at one shape, in one interleaved run.

    Attributes:
        p50_s, p95_s: seconds per call of the engine.
        throughput: samples per second of the engine (batch / p50).
        eager_p50_s: seconds per call of the same graph, uncompiled, same process and run.
        peak_memory_bytes, ratio: of the engine, as in `SideTiming`.
        eager, fallback: all figures of the others; None in older proofs, and for a fallback
            that was not timed (see `Proof.fallback`).
    """

    bucket: str
    sizes: dict[str, int]
    p50_s: float = Field(gt=0)
    p95_s: float = Field(gt=0)
    throughput: float
    eager_p50_s: float = Field(gt=0)
    # Left out when they are not there: signatures of older proofs cover their very bytes.
    peak_memory_bytes: int | None = Field(default=None, exclude_if=_is_none)
    eager: SideTiming | None = Field(default=None, exclude_if=_is_none)
    fallback: SideTiming | None = Field(default=None, exclude_if=_is_none)
    ratio: Ratio | None = Field(default=None, exclude_if=_is_none)

    @property
    def speedup(self) -> float:
        """How many times faster than eager."""
        return self.eager_p50_s / self.p50_s

    @property
    def shape(self) -> str:
        """Bucket and sizes as one text, by which engines of one model are compared."""
        sizes = ",".join(f"{name}={size}" for name, size in sorted(self.sizes.items()))
        return f"{self.bucket}:{sizes}"


class FailedSample(Document):
    """The sample at which an engine that failed its proof was farthest off.

    Attributes:
        bucket, sizes, variant, seed: what it was drawn for; with the recipe they give it once
            more.
        checks: of all outputs at this sample; one without a name when the engine failed.
        allowed: the bounds, by output.
        typical: size of an element over all samples, by output, that distances are measured by.
        arrays: .npz with inputs, wanted and found outputs; None when they were too large.
    """

    bucket: str
    sizes: dict[str, int]
    variant: str
    seed: int | None = Field(default=None, exclude_if=_is_none)
    checks: tuple[OutputCheck, ...]
    allowed: dict[str, Tolerance]
    typical: dict[str, float] = Field(default={}, exclude_if=not_)
    arrays: BlobRef | None = None


class Proof(Document):
    """The record that an engine may serve, or why it may not.

    Attributes:
        reason: why the outcome is not `passed`; "" when it is.
        reference: what the engine was compared with.
        device: where it ran; None when it did not.
        fallback: how the fallback that was timed computes, or why none was; "" in older proofs.
        kernels: of a call at the first shape, and who counts: of `engine`, `eager`, `fallback`.
        peak_memory_bytes, eager_peak_memory_bytes: growth of resident or device memory.
        findings: warnings of builder and loader, word for word.
        worst: the worst sample of a proof that failed; None in older ones, and where no sample
            was compared.
        code: digest of Smelt's own code that proved it; "" in older proofs.
        samples: how many were compared, by how they were drawn; `given` ones are real.
        notes: what was not compared, or not drawn, and why.
        columns, agreements, power: over all samples, by output; empty in older proofs.
    """

    outcome: ProofOutcome
    reason: str = ""
    reference: str = ""
    device: DeviceFacts | None = None
    checks: tuple[OutputCheck, ...] = ()
    tasks: tuple[TaskCheck, ...] = ()
    timings: tuple[Timing, ...] = ()
    fallback: str = Field(default="", exclude_if=not_)
    kernels: dict[str, tuple[int, str]] = Field(default={}, exclude_if=not_)
    peak_memory_bytes: int = 0
    eager_peak_memory_bytes: int = 0
    findings: tuple[str, ...] = ()
    worst: FailedSample | None = Field(default=None, exclude_if=_is_none)
    code: str = ""
    samples: dict[str, int] = {}
    notes: tuple[str, ...] = Field(default=(), exclude_if=not_)
    columns: tuple[ColumnCheck, ...] = ()
    agreements: tuple[AgreementCheck, ...] = ()
    power: tuple[PowerCheck, ...] = ()
    duration_s: float = 0.0
    created_at: str


class EngineManifest(Document):
    """The published form of an engine; its proofs stand beside it, numbered.

    Attributes:
        files: blob by file name; empty for kinds that run the master itself.
        needs_master: whether the loader reads weights or graph from the master.
        build_duration_s: seconds of the builder alone.
        peak_build_memory_bytes: largest resident memory of the building process.
        findings: the builder's warnings, word for word.
    """

    key: BuildKey
    files: dict[str, BlobRef]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    needs_master: bool
    build_duration_s: float
    peak_build_memory_bytes: int = 0
    findings: tuple[str, ...] = ()
    created_at: str

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The shapes that this engine was built for."""
        return self.key.buckets

    @property
    def num_bytes(self) -> int:
        """Size of the engine's own files."""
        return sum(ref.num_bytes for ref in self.files.values())


class PublishedEngine(Document):
    """An engine as selection sees it: its manifest and its newest proof."""

    digest: str
    manifest: EngineManifest
    proof: Proof
