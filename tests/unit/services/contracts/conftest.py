"""Small documents for the tests of the contracts; every field that matters can be changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import (
    EngineManifest,
    Proof,
    ProofOutcome,
    PublishedEngine,
    Timing,
)
from services.contracts.model.recipe import Bucket, DimRange
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import ObstoreArtifactStore


def build_key(**changes: Any) -> BuildKey:
    """A complete key, with changes."""
    fields: dict[str, Any] = {
        "master_digest": "a" * 64,
        "kind": EngineKind.TENSORRT,
        "precision": Precision.FP16,
        "calibration_digest": "",
        "buckets": (Bucket(dims={"batch": DimRange(min=1, opt=4, max=8)}),),
        "builder_options": {"optimization_level": "3"},
        "generation": "cuda-sm90",
        "device_name": "NVIDIA H200",
        "device_memory_gib": 139,
        "driver": "580.1",
        "toolchain": {"tensorrt": "10.14"},
        "plugin_digests": (),
    }
    return BuildKey(**fields | changes)


def device(**changes: Any) -> DeviceFacts:
    """The device that `build_key` is for, with changes."""
    fields: dict[str, Any] = {
        "generation": "cuda-sm90",
        "name": "NVIDIA H200",
        "memory_gib": 139,
        "driver": "580.1",
        "toolchain": {"tensorrt": "10.14", "torch": "2.13.0"},
    }
    return DeviceFacts(**fields | changes)


def proof(**changes: Any) -> Proof:
    """A passed proof on `device()`, with changes; `speedup` adds one timing."""
    speedup = changes.pop("speedup", None)
    if speedup is not None:
        timing = {"p50_s": 1.0, "p95_s": 1.0, "throughput": 1.0, "eager_p50_s": speedup}
        changes["timings"] = (Timing(bucket="batch8", sizes={"batch": 8}, **timing),)
    fields: dict[str, Any] = {
        "outcome": ProofOutcome.PASSED,
        "device": device(),
        "created_at": "2026-01-01T00:00:00+00:00",
    }
    return Proof(**fields | changes)


def manifest(**changes: Any) -> EngineManifest:
    """A manifest without files for `build_key()`, with changes."""
    spec = TensorSpec(name="x", datatype="FP32", shape=("batch", 3))
    fields: dict[str, Any] = {
        "key": build_key(),
        "files": {},
        "inputs": (spec,),
        "outputs": (spec,),
        "needs_master": False,
        "build_duration_s": 1.5,
        "created_at": "2026-01-01T00:00:00+00:00",
    }
    return EngineManifest(**fields | changes)


@pytest.fixture
def backend() -> MemoryStore:
    """What `store` keeps its objects in; another store over it sees the same."""
    return MemoryStore()


@pytest.fixture
def store(backend: MemoryStore) -> ObstoreArtifactStore:
    """An empty store of its own."""
    return ObstoreArtifactStore(backend, "memory:")


@pytest.fixture
def registry(store: ObstoreArtifactStore, tmp_path: Path) -> Registry:
    """A client of that store."""
    return Registry(store, tmp_path / "cache")


@pytest.fixture
def make_key() -> Callable[..., BuildKey]:
    return build_key


@pytest.fixture
def make_device() -> Callable[..., DeviceFacts]:
    return device


@pytest.fixture
def make_proof() -> Callable[..., Proof]:
    return proof


@pytest.fixture
def make_manifest() -> Callable[..., EngineManifest]:
    return manifest


@pytest.fixture
def make_engine() -> Callable[..., PublishedEngine]:
    """An engine from changes to its key, and a proof."""

    def make(proof_record: Proof | None = None, **key_changes: Any) -> PublishedEngine:
        key = build_key(**key_changes)
        return PublishedEngine(
            digest=key.digest(), manifest=manifest(key=key), proof=proof_record or proof()
        )

    return make
