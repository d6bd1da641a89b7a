"""Engines of one master that were timed together: in turns, in one process, on one device.

joint_runs/<master digest>/<generation>/<n>.json    JointRun; later ones add to earlier ones

Two runs meet two states of a machine. All engines of one run meet the same one, so that their
figures can be compared. The proof of a new engine times it beside the best one so far.
"""

from statistics import geometric_mean
from typing import Self

from pydantic import model_validator

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.document import Document
from services.contracts.model.manifest import SideTiming, Timing
from services.contracts.security.provenance import DsseSignature
from services.contracts.text.words import counted, readable_time


class JointTiming(Document):
    """All sides at one shape.

    Attributes:
        engines: by digest; each run has the same ones at all of its shapes.
        fallback: None when it was not timed (see `JointRun.fallback`).
    """

    bucket: str
    sizes: dict[str, int]
    engines: dict[str, SideTiming]
    eager: SideTiming
    fallback: SideTiming | None = None

    def paired_s(self, digest: str) -> float:
        """Seconds per call of an engine, relative to the baseline's."""
        side = self.engines[digest]
        baseline = self.fallback or self.eager
        return baseline.p50_s / side.ratio.median if side.ratio else side.p50_s

    def timing(self, digest: str) -> Timing:
        """One engine beside eager and the fallback, as its proof has it."""
        return Timing(
            bucket=self.bucket,
            sizes=self.sizes,
            **dict(self.engines[digest]),
            eager_p50_s=self.eager.p50_s,
            eager=self.eager,
            fallback=self.fallback,
        )


class JointRun(Document):
    """One run.

    Attributes:
        device: where it was.
        incumbent: digest of the engine that was best before, and is timed again so that
            this run and the earlier ones have one in common; "" in a first run.
        shapes: the curve.
        left_out: why engines of the same version were not timed, by digest; they come last.
        fallback: how the fallback computes, or why it was not timed.
        signature: of all else, when its worker has a key.
    """

    master_digest: str
    device: DeviceFacts
    incumbent: str = ""
    shapes: tuple[JointTiming, ...]
    left_out: dict[str, str] = {}
    fallback: str = ""
    created_at: str
    signature: DsseSignature | None = None

    @model_validator(mode="after")
    def _has_whole_curves(self) -> Self:
        # Selection relies on it, and must not trip over a document.
        if any(shape.engines.keys() != self.digests for shape in self.shapes):
            raise ValueError("expected the same engines at each of its shapes")
        return self

    @property
    def digests(self) -> frozenset[str]:
        """The engines that were timed."""
        return frozenset().union(*(shape.engines for shape in self.shapes))

    @property
    def words(self) -> str:
        """When it was, and of how many, for people."""
        num = counted(len(self.digests), "candidate")
        return f"timed together on {readable_time(self.created_at)}, {num}"

    def payload(self) -> bytes:
        """What is signed."""
        return self.model_copy(update={"signature": None}).canonical_json()

    def mean_s(self, digest: str) -> float:
        """Seconds per call of an engine, the geometric mean of all shapes.

        Without what changed in the meantime: the baseline's seconds by the ratio of paired calls.
        """
        return geometric_mean(shape.paired_s(digest) for shape in self.shapes)

    def timings(self, digest: str) -> tuple[Timing, ...]:
        """The curve of one engine beside eager and the fallback, as a proof has it."""
        return tuple(shape.timing(digest) for shape in self.shapes)
