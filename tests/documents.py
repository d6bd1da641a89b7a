"""The smallest documents that the contracts allow, for tests that care about one field."""

from typing import Any

from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import EngineManifest, Proof, ProofOutcome
from services.contracts.model.recipe import Bucket

AT = "2026-01-01T00:00:00Z"


def small_key(**changes: Any) -> BuildKey:
    """A key of a static model, without options or toolchain, with changes."""
    fields: dict[str, Any] = {
        "master_digest": "d" * 64,
        "kind": EngineKind.OPENVINO,
        "precision": Precision.FP32,
        "buckets": (Bucket(dims={}),),
        "generation": "cpu-x86_64-v3",
        "toolchain": {},
    }
    return BuildKey(**fields | changes)


def small_manifest(key: BuildKey, **changes: Any) -> EngineManifest:
    """A manifest without files and tensors, with changes."""
    fields: dict[str, Any] = {
        "files": {},
        "inputs": (),
        "outputs": (),
        "needs_master": False,
        "build_duration_s": 1.0,
        "created_at": AT,
    }
    return EngineManifest(key=key, **fields | changes)


def small_proof(outcome: ProofOutcome) -> Proof:
    """A proof of which only the outcome is known."""
    return Proof(outcome=outcome, created_at=AT)
