"""Whether a model's fallback computes what its master does, as it was found when it was added.

The fallback runs a graph that our own importer made. ONNX Runtime, which shares no code with it, is
the witness; a few of its answers are kept with the version, so that every replica can compare its
own compiled fallback on its own device.
"""

from pydantic import Field

from services.contracts.hardware.kinds import Precision
from services.contracts.model.document import Document
from services.contracts.model.recipe import Tolerance


class FallbackVerdict(Document):
    """The result of that comparison for the importer's graph, in float32 and not compiled.

    Attributes:
        refuted: where they differ, how far, and how far they may; "" when they agree.
        refused: why torch cannot compute the master at all, where ONNX Runtime can.
        unknown: why nothing was compared; "" when something was.
        witness: what it was compared with.
        code: digest of the importer that made the graph, or refused to: another one's graph is
            another.
        num_samples: how many were compared.
        allowed: how far a fallback may be from the kept answers, by output.
        rounding: by fp16 and bf16, why a proof refuses the graph in that precision, computed
            eagerly; those that pass, and those that were not tried, are left out.
        rounding_untried: why some were not tried; "" when all were, and in older records.
    """

    refuted: str = ""
    # Left out when it is not there: older releases refuse keys that they do not know.
    refused: str = Field(default="", exclude_if=lambda v: not v)
    unknown: str = ""
    witness: str = ""
    code: str = ""
    num_samples: int = 0
    allowed: dict[str, Tolerance] = {}
    rounding: dict[Precision, str] = Field(default={}, exclude_if=lambda v: not v)
    rounding_untried: str = Field(default="", exclude_if=lambda v: not v)

    def refutes(self, code: str) -> bool:
        """Whether a graph that this importer makes is known to be wrong, or is none."""
        return bool(self.refuted or self.refused) and self.code == code

    @property
    def words(self) -> str:
        """All of it in one sentence."""
        if self.unknown:
            return f"the fallback's graph was not compared with ONNX Runtime: {self.unknown}"
        if self.refused:
            return f"ONNX Runtime serves until an engine is proven, as torch cannot: {self.refused}"
        if self.refuted:
            return (
                f"the fallback's graph is refuted, so ONNX Runtime serves in its place: "
                f"{self.refuted}"
            )
        return f"the fallback's graph agrees with {self.witness} at {self.num_samples} samples"


def rounding_fault(verdict: FallbackVerdict | None, precision: Precision) -> str:
    """Why proofs are expected to refuse a precision: rounding alone does; "" where it may."""
    return verdict.rounding.get(precision, "") if verdict else ""
