"""What the reconcile loop takes for news of a model's engines."""

from pathlib import Path

import pytest

from services.contracts.joint_run import JointRun
from services.contracts.manifest import ProofOutcome
from services.contracts.object_store import open_store
from services.contracts.registry import Registry
from services.controller.observed import StoreView
from services.engines.device_probe import probe_device
from tests.documents import AT, small_key, small_manifest, small_proof

from .reconcile_world import add


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


def test_an_engine_a_proof_and_a_joint_run_are_news_each(registry: Registry) -> None:
    master = add(registry, "a").master.digest
    view = StoreView(registry)

    def marks() -> frozenset[tuple[str, str]]:
        return view.look([]).engine_marks[master]

    seen = [marks()]
    key = small_key(master_digest=master)
    registry.publish_engine(small_manifest(key), {}, small_proof(ProofOutcome.NOT_RUN))
    seen.append(marks())
    passed = small_proof(ProofOutcome.PASSED).model_copy(update={"created_at": "later"})
    registry.add_proof(key.digest(), passed)
    seen.append(marks())
    registry.add_joint_run(
        JointRun(master_digest=master, device=probe_device(), shapes=(), created_at=AT)
    )
    seen.append(marks())
    assert len(set(seen)) == len(seen)
    assert marks() == seen[-1]
