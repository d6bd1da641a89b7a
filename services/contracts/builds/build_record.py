"""What a worker writes of each attempt to build a key.

builds/<key digest>/<n>.json              BuildRecord; <n> is a number of six digits, from 000001
"""

from enum import StrEnum

from pydantic import ConfigDict, Field

from services.contracts.builds.build_key import BuildKey
from services.contracts.model.document import Document
from services.contracts.model.manifest import Proof


class BuildOutcome(StrEnum):
    """How a build ended."""

    PROVEN = "proven"
    BUILT = "built"
    PROOF_FAILED = "proof_failed"
    FAILED = "failed"

    @property
    def is_good(self) -> bool:
        """Whether there is an engine, proven or not."""
        return self in (BuildOutcome.PROVEN, BuildOutcome.BUILT)


class BuildRecord(Document):
    """What happened in one attempt to build one key.

    What a newer compiler says beyond this is left out when it is read: the attempt counts all the
    same, and a controller that could not read it would leave its model out.

    Attributes:
        stage: the last one entered: open, build, prove, benchmark, publish; wait: for the host.
        reason: the builder's or the proof's own words; "" on success.
        stage_durations_s: seconds by stage.
        is_counted: whether a failure counts among those after which the key is quarantined: not
            where others held the memory that it wanted, or a disk was full.
    """

    model_config = ConfigDict(extra="ignore")

    key: BuildKey
    outcome: BuildOutcome
    stage: str
    reason: str = ""
    log_tail: tuple[str, ...] = ()
    proof: Proof | None = None
    stage_durations_s: dict[str, float] = {}
    is_counted: bool = Field(default=True, exclude_if=bool)
    started_at: str
