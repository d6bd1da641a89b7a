"""What the reconcile loop takes for news of a model's engines."""

import shutil
from pathlib import Path

import pytest

from services.contracts.errors import StoreError
from services.contracts.model.manifest import ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_run import JointRun
from services.contracts.store.object_store import open_store, open_tested_store
from services.controller.deploy.observed import StoreView
from services.engines.device.device_probe import probe_device
from tests.documents import AT, small_key, small_manifest, small_proof
from tests.unit.services.controller.deploy.reconcile_world import add


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


def test_an_engine_a_proof_and_a_joint_run_are_news_each(registry: Registry) -> None:
    master = add(registry, "a").master.digest
    view = StoreView(registry)

    def marks() -> tuple[str, ...]:
        return view.look([]).engine_keys[master]

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


def test_another_store_in_its_place_is_not_taken_for_removed_models(tmp_path: Path) -> None:
    folder, away = tmp_path / "store", tmp_path / "away"
    registry = Registry(open_tested_store(str(folder)), tmp_path / "cache")
    add(registry, "a")
    view = StoreView(registry)
    assert view.look([]).names == {"m"}
    folder.rename(away)
    with pytest.raises(StoreError, match="is empty now"):
        view.look([])
    add(Registry(open_tested_store(str(folder)), tmp_path / "other"), "b")
    with pytest.raises(StoreError, match="is another store now"):
        view.look([])
    shutil.rmtree(folder)
    away.rename(folder)
    assert view.look([]).names == {"m"}
