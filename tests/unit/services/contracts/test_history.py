"""Build records and proofs, each told once."""

import gc
import logging
import weakref
from typing import Any

import pytest

from services.contracts.build_key import BuildKey
from services.contracts.errors import StoreError
from services.contracts.history import BuildHistory
from services.contracts.manifest import (
    BuildOutcome,
    BuildRecord,
    EngineManifest,
    Proof,
    ProofOutcome,
)
from services.contracts.object_store import ObstoreArtifactStore
from services.contracts.records import numbered_key
from services.contracts.registry import Registry
from services.contracts.registry_engines import engine_folder


@pytest.fixture
def history(store: ObstoreArtifactStore) -> BuildHistory:
    return BuildHistory(store)


def record(key: BuildKey, outcome: BuildOutcome) -> BuildRecord:
    return BuildRecord(key=key, outcome=outcome, stage="build", started_at="")


def manifest(key: BuildKey) -> EngineManifest:
    return EngineManifest(
        key=key, files={}, inputs=(), outputs=(), needs_master=True, build_duration_s=1,
        created_at="",
    )  # fmt: skip


def proof(outcome: ProofOutcome) -> Proof:
    return Proof(outcome=outcome, created_at="")


def test_each_record_is_told_once(registry: Registry, history: BuildHistory, make_key: Any) -> None:
    assert history.new_build_records() == []
    first, other = make_key(), make_key(driver="581.0")
    registry.record_build(record(first, BuildOutcome.FAILED))
    registry.record_build(record(other, BuildOutcome.PROVEN))
    told = history.new_build_records()
    assert {(each.key.digest(), each.outcome) for each in told} == {
        (first.digest(), BuildOutcome.FAILED),
        (other.digest(), BuildOutcome.PROVEN),
    }
    registry.record_build(record(first, BuildOutcome.BUILT))
    assert [each.outcome for each in history.new_build_records()] == [BuildOutcome.BUILT]
    assert history.new_build_records() == []


def test_each_proof_is_told_once_with_its_engines_key(
    registry: Registry, history: BuildHistory, make_key: Any
) -> None:
    key = make_key()
    registry.publish_engine(manifest(key), {}, proof(ProofOutcome.NOT_RUN))
    assert [(k, p.outcome) for k, p in history.new_proofs()] == [(key, ProofOutcome.NOT_RUN)]
    registry.add_proof(key.digest(), proof(ProofOutcome.PASSED))
    assert [(k, p.outcome) for k, p in history.new_proofs()] == [(key, ProofOutcome.PASSED)]
    assert history.new_proofs() == []


def test_a_proof_whose_engine_is_not_published_yet_waits(
    store: ObstoreArtifactStore, history: BuildHistory, make_key: Any
) -> None:
    key = make_key()
    engine = engine_folder(key)
    store.create(
        numbered_key(f"{engine}proofs/{'b' * 64}/", 1), proof(ProofOutcome.PASSED).canonical_json()
    )
    assert history.new_proofs() == []
    store.create(f"{engine}manifest.json", manifest(key).canonical_json())
    assert [k for k, _ in history.new_proofs()] == [key]


def test_what_cannot_be_read_is_passed_over_once(
    registry: Registry,
    store: ObstoreArtifactStore,
    history: BuildHistory,
    make_key: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.create(f"builds/{'0' * 64}/000001.json", b'{"from": "a newer compiler"}')
    registry.record_build(record(make_key(), BuildOutcome.PROVEN))
    with caplog.at_level(logging.WARNING):
        assert [each.outcome for each in history.new_build_records()] == [BuildOutcome.PROVEN]
        assert history.new_build_records() == []
    assert len(caplog.records) == 1
    assert "is not a BuildRecord" in caplog.text


def test_what_a_store_that_failed_held_back_is_told_later(
    registry: Registry,
    store: ObstoreArtifactStore,
    history: BuildHistory,
    make_key: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [make_key(driver=f"58{number}.0") for number in range(3)]
    for key in keys:
        registry.record_build(record(key, BuildOutcome.BUILT))
    read, num_reads = store.read, 0

    def fails_once(key: str) -> bytes:
        nonlocal num_reads
        num_reads += 1
        if num_reads == 2:
            raise StoreError("the store is away")
        return read(key)

    monkeypatch.setattr(store, "read", fails_once)
    with pytest.raises(StoreError, match="away"):
        history.new_build_records()
    told = {each.key.digest() for each in history.new_build_records()}
    assert told == {key.digest() for key in keys}


def test_a_new_process_is_told_everything(
    registry: Registry, store: ObstoreArtifactStore, history: BuildHistory, make_key: Any
) -> None:
    registry.record_build(record(make_key(), BuildOutcome.FAILED))
    assert history.new_build_records() == BuildHistory(store).new_build_records()


def test_a_look_lists_once_and_keeps_no_document(
    registry: Registry, store: ObstoreArtifactStore, make_key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("list", "read"):
        method = getattr(store, name)

        def counted(key: str, name: str = name, method: Any = method) -> Any:
            asked.append(name)
            return method(key)

        monkeypatch.setattr(store, name, counted)
    for number in range(5):
        registry.record_build(record(make_key(driver=f"58{number}.0"), BuildOutcome.BUILT))
    history = BuildHistory(store)
    asked.clear()
    told = history.new_build_records()
    assert (asked.count("list"), asked.count("read")) == (1, 5)
    found = weakref.ref(told[0])
    del told
    gc.collect()
    assert found() is None
