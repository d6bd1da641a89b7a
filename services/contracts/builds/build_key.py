"""The build key: everything that changes an engine's bytes or its fitness to run.

An allow-list: each field states its reason, and nothing else enters. Hashing all of the
environment would break reuse; leaving out a fact would give wrong hits.
"""

import hashlib
from functools import cached_property
from typing import Any, Self

from pydantic import Field

from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.document import Document
from services.contracts.model.recipe import Bucket


class BuildKey(Document):
    """Identity of an engine; `digest()` names it everywhere. Descriptions are the reasons."""

    master_digest: str = Field(description="another graph or other weights compute other values")
    kind: EngineKind = Field(description="each compiler emits its own format")
    precision: Precision = Field(description="the types of the graph that is compiled")
    calibration_digest: str = Field(
        default="", description="scales of a quantized graph come from these samples"
    )
    buckets: tuple[Bucket, ...] = Field(description="kernels and profiles are tuned for shapes")
    pads: dict[str, float] = Field(
        default={}, description="an engine that pads requests to its buckets writes these values"
    )
    proof_terms: str = Field(
        default="",
        description="inputs, bounds and samples it was proven by: another recipe has others",
    )
    builder_options: dict[str, str] = Field(
        default={},
        description="flags that change code generation, and the digest of Smelt's own code that "
        "makes engines of this kind; the builder lists the former",
    )
    generation: str = Field(description="machine code of one generation fails on another")
    device_name: str = Field(
        default="",
        description="kernels tuned on one product of a generation may fail or be slow on its "
        "sibling; empty for engines that are built ahead of time for a whole generation",
    )
    device_memory_gib: int = Field(
        default=0, description="tactics are chosen by the memory there is; 0 as device_name"
    )
    driver: str = Field(
        default="", description="a plan may not load under another driver; '' as device_name"
    )
    toolchain: dict[str, str] = Field(
        description="version by library whose compiler or loader the engine depends on"
    )
    plugin_digests: tuple[str, ...] = Field(
        default=(), description="a custom op's code is part of the engine"
    )

    def model_copy(self, **changes: Any) -> Self:
        """A copy, with a digest of its own."""
        copied = super().model_copy(**changes)
        # pydantic copies cached properties too: the digest would be the original's.
        copied.__dict__.pop("_digest", None)
        return copied

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.canonical_json()).hexdigest()

    def metric_labels(self) -> dict[str, str]:
        """The labels that metrics about builds and proofs share."""
        return {
            "generation": self.generation,
            "kind": self.kind.value,
            "precision": self.precision.value,
        }

    def digest(self) -> str:
        """Full sha256 of the canonical JSON, in hex: the engine's name in the store."""
        return self._digest
