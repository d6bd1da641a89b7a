"""Build records and proofs, each told once."""

import gc
import logging
import weakref
from typing import Any

import pytest

from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.errors import StoreError
from services.contracts.model.manifest import EngineManifest, Proof, ProofOutcome
from services.contracts.registry.engines import engine_folder
from services.contracts.registry.records import numbered_key
from services.contracts.registry.registry import Registry
from services.contracts.store.history import BuildHistory
from services.contracts.store.object_store import ObstoreArtifactStore


@pytest.fixture
def history(store: ObstoreArtifactStore) -> BuildHistory:
    found = BuildHistory(store, max_at_start=0)
    found.new_build_records([])
    found.new_proofs([])
    return found


def record(key: BuildKey, outcome: BuildOutcome) -> BuildRecord:
    return BuildRecord(key=key, outcome=outcome, stage="build", started_at="")


def manifest(key: BuildKey) -> EngineManifest:
    return EngineManifest(
        key=key,
        files={},
        inputs=(),
        outputs=(),
        needs_master=True,
        build_duration_s=1,
        created_at="",
    )


def proof(outcome: ProofOutcome) -> Proof:
    return Proof(outcome=outcome, created_at="")


def records_of(history: BuildHistory, registry: Registry) -> list[BuildRecord]:
    return history.new_build_records(registry.build_record_keys())


def proofs_of(history: BuildHistory, registry: Registry) -> list[tuple[BuildKey, Proof]]:
    return history.new_proofs(registry.engine_keys())


def test_each_record_is_told_once(registry: Registry, history: BuildHistory, make_key: Any) -> None:
    assert records_of(history, registry) == []
    first, other = make_key(), make_key(driver="581.0")
    registry.record_build(record(first, BuildOutcome.FAILED))
    registry.record_build(record(other, BuildOutcome.PROVEN))
    told = records_of(history, registry)
    assert {(each.key.digest(), each.outcome) for each in told} == {
        (first.digest(), BuildOutcome.FAILED),
        (other.digest(), BuildOutcome.PROVEN),
    }
    registry.record_build(record(first, BuildOutcome.BUILT))
    assert [each.outcome for each in records_of(history, registry)] == [BuildOutcome.BUILT]
    assert records_of(history, registry) == []


def test_each_proof_is_told_once_with_its_engines_key(
    registry: Registry, history: BuildHistory, make_key: Any
) -> None:
    key = make_key()
    registry.publish_engine(manifest(key), {}, proof(ProofOutcome.NOT_RUN))
    assert [(k, p.outcome) for k, p in proofs_of(history, registry)] == [
        (key, ProofOutcome.NOT_RUN)
    ]
    registry.add_proof(key.digest(), proof(ProofOutcome.PASSED))
    assert [(k, p.outcome) for k, p in proofs_of(history, registry)] == [(key, ProofOutcome.PASSED)]
    assert proofs_of(history, registry) == []


def test_a_proof_whose_engine_is_not_published_yet_waits(
    registry: Registry, store: ObstoreArtifactStore, history: BuildHistory, make_key: Any
) -> None:
    key = make_key()
    engine = engine_folder(key)
    store.create(
        numbered_key(f"{engine}proofs/{'b' * 64}/", 1), proof(ProofOutcome.PASSED).canonical_json()
    )
    assert proofs_of(history, registry) == []
    store.create(f"{engine}manifest.json", manifest(key).canonical_json())
    assert [k for k, _ in proofs_of(history, registry)] == [key]


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
        assert [each.outcome for each in records_of(history, registry)] == [BuildOutcome.PROVEN]
        assert records_of(history, registry) == []
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
        records_of(history, registry)
    told = {each.key.digest() for each in records_of(history, registry)}
    assert told == {key.digest() for key in keys}


def test_what_was_there_before_the_first_look_is_not_read(
    registry: Registry, store: ObstoreArtifactStore, make_key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.record_build(record(make_key(), BuildOutcome.FAILED))
    registry.publish_engine(manifest(make_key()), {}, proof(ProofOutcome.PASSED))
    keys, engines = registry.build_record_keys(), registry.engine_keys()
    monkeypatch.delattr(ObstoreArtifactStore, "read")
    history = BuildHistory(store, max_at_start=0)
    for _ in range(2):
        assert (history.new_build_records(keys), history.new_proofs(engines)) == ([], [])


def test_a_look_reads_each_once_and_keeps_no_document(
    registry: Registry,
    store: ObstoreArtifactStore,
    history: BuildHistory,
    make_key: Any,
    monkeypatch: pytest.MonkeyPatch,
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
    asked.clear()
    told = records_of(history, registry)
    assert (asked.count("list"), asked.count("read")) == (1, 5)
    found = weakref.ref(told[0])
    del told
    gc.collect()
    assert found() is None


@pytest.mark.parametrize(("max_at_start", "num_read"), [(2, 2), (1, 0)])
def test_a_start_reads_what_is_there_up_to_a_bound(
    store: ObstoreArtifactStore,
    registry: Registry,
    make_key: Any,
    max_at_start: int,
    num_read: int,
) -> None:
    for key in (make_key(), make_key(driver="581.0")):
        registry.record_build(record(key, BuildOutcome.FAILED))
    assert len(records_of(BuildHistory(store, max_at_start), registry)) == num_read
