"""Work that is no build is done by one worker at a time; who waited takes what was found."""

from dataclasses import replace
from pathlib import Path

import pytest

from compiler_worker.building.turns import awaited_lease
from compiler_worker.children.requests import ChildEvent, Stage
from compiler_worker.proof.proof_job import prove_published
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.held_lease import HeldLease, take_lease
from services.contracts.hardware.facts import DeviceFacts, Platform
from services.contracts.model.manifest import MasterRecord, ModelVersion, Proof, ProofOutcome
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.documents import AT, small_key, small_manifest

KEY = small_key()
DIGEST = KEY.digest()
DEVICE = DeviceFacts(generation=KEY.generation, name="cpu", memory_gib=1)
VERSION = ModelVersion(
    name="m",
    version=1,
    recipe=Recipe(),
    source="m.onnx",
    source_fingerprint="f",
    created_at=AT,
    master=MasterRecord(
        digest=KEY.master_digest, files={}, inputs=(), outputs=(), opset=20, num_parameters=1
    ),
)


def proof(outcome: ProofOutcome) -> Proof:
    return Proof(outcome=outcome, device=DEVICE, created_at=AT)


@pytest.fixture
def worker(tmp_path: Path) -> WorkerContext:
    registry = Registry(open_store("memory:"), tmp_path)
    registry.publish_engine(small_manifest(KEY), {}, proof(ProofOutcome.NOT_RUN))
    return WorkerContext(
        registry=registry,
        settings=CompilerSettings(cache_dir=tmp_path, build_lease_s=0.04),
        devices={Platform.CPU: DEVICE},
    )


def other_worker(registry: Registry, key_digest: str = DIGEST) -> HeldLease:
    """Its lease, long enough for any test; it is at work from the moment on."""
    lease = take_lease(registry, key_digest, registry.lease(key_digest), 3600.0)
    assert lease is not None
    return lease.__enter__()


def test_it_is_waited_for_and_then_held(worker: WorkerContext) -> None:
    theirs = other_worker(worker.registry)
    told = []

    def end_theirs(key: BuildKey, event: ChildEvent) -> None:
        told.append((key, event.stage, event.line.split(":")[0]))
        theirs.__exit__(None, None, None)

    with awaited_lease(DIGEST, KEY, replace(worker, on_progress=end_theirs)) as lease:
        assert not worker.registry.lease(DIGEST).is_free
        assert lease.lost_to() == ""
    assert told == [(KEY, Stage.WAIT, "another worker holds the lease")]
    assert worker.registry.lease(DIGEST).is_free


def test_a_proof_that_another_worker_makes_is_not_made_again(worker: WorkerContext) -> None:
    """There are no files to be proven: an own attempt would fail."""
    theirs = other_worker(worker.registry)

    def end_theirs(key: BuildKey, event: ChildEvent) -> None:
        worker.registry.add_proof(DIGEST, proof(ProofOutcome.PASSED))
        theirs.__exit__(None, None, None)

    watched = replace(worker, on_progress=end_theirs)
    found = prove_published(DIGEST[:12], watched, VERSION)
    assert found.proof.outcome is ProofOutcome.PASSED
    assert worker.registry.lease(DIGEST).is_free
