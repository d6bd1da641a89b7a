"""Joint runs in the store: their order, those that cannot be read, and whose signature counts."""

from pathlib import Path

import pytest

from services.contracts.registry.registry import Registry
from services.contracts.security.signing import Signer, TrustRoot
from services.contracts.selection.joint_run import JointRun
from services.contracts.store.object_store import ObstoreArtifactStore
from tests.signing_keys import new_keys
from tests.unit.services.contracts.selection.test_joint_order import HERE, run


def test_runs_are_kept_in_their_order(registry: Registry) -> None:
    first, second = run(a=1.0, b=2.0), run("a", a=1.0, c=2.0)
    assert [registry.add_joint_run(each) for each in (first, second)] == [1, 2]
    assert registry.joint_runs("a" * 64) == [first, second]
    assert registry.joint_runs("b" * 64) == []


def test_one_that_cannot_be_read_is_left_out(
    registry: Registry, store: ObstoreArtifactStore, caplog: pytest.LogCaptureFixture
) -> None:
    registry.add_joint_run(run(a=1.0))
    store.create(f"joint_runs/{'a' * 64}/{HERE}/000002.json", b'{"new": 1}')
    assert registry.joint_runs("a" * 64) == [run(a=1.0)]
    assert "a joint run is left out" in caplog.text


def test_with_a_trust_root_only_signed_ones_count(registry: Registry, tmp_path: Path) -> None:
    ours, other = (new_keys(tmp_path, name) for name in ("ours", "other"))
    good = signed(run(a=2.0), Signer(ours.private))
    changed = good.model_copy(update={"incumbent": "x"})
    foreign = signed(run(a=3.0), Signer(other.private))
    trust = TrustRoot(ours.public)
    for each in (run(a=1.0), good, changed, foreign):
        registry.add_joint_run(each)
    assert registry.joint_runs("a" * 64, trust) == [good]
    assert len(registry.joint_runs("a" * 64)) == 4


def signed(made: JointRun, signer: Signer) -> JointRun:
    (signature,) = signer.sign(made.payload()).signatures
    return made.model_copy(update={"signature": signature})
