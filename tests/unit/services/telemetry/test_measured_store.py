"""Requests to a store are counted: faults as errors, answers as answers."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.contracts.errors import AlreadyPublishedError, NotFoundError, StoreError
from services.contracts.model.manifest import BlobRef
from services.contracts.store.object_store import open_store
from services.telemetry.catalog import CONTROLLER_METRICS, STORE_REQUESTS
from services.telemetry.measured_store import MeasuredStore
from services.telemetry.prometheus_recorder import PrometheusRecorder

Counts = dict[tuple[str, str], float]


@pytest.fixture
def collectors() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def store(tmp_path: Path, collectors: CollectorRegistry) -> MeasuredStore:
    recorder = PrometheusRecorder(CONTROLLER_METRICS, collectors)
    return MeasuredStore(open_store(str(tmp_path / "store")), recorder)


def counts(collectors: CollectorRegistry) -> Counts:
    """What was counted, without what is still 0."""
    samples = [s for family in collectors.collect() for s in family.samples]
    return {
        (s.labels["operation"], s.labels["outcome"]): s.value
        for s in samples
        if s.name == STORE_REQUESTS.name and s.value
    }


def test_every_verb_is_passed_on_and_counted(
    store: MeasuredStore, collectors: CollectorRegistry, tmp_path: Path
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(b"blob")
    store.fetch_blob(store.put_blob(source), copy)
    store.create("a/b", b"object")
    assert (copy.read_bytes(), store.read("a/b"), store.list("a/")) == (
        b"blob",
        b"object",
        ["a/b"],
    )
    assert [each.key for each in store.objects("a/")] == ["a/b"]
    store.delete("a/b")
    verbs = ("put_blob", "fetch_blob", "create", "read", "list", "delete")
    assert counts(collectors) == {(verb, "ok"): 1.0 + (verb == "list") for verb in verbs}


def test_an_absent_key_and_a_lost_race_are_answers(
    store: MeasuredStore, collectors: CollectorRegistry
) -> None:
    store.create("a/b", b"1")
    with pytest.raises(AlreadyPublishedError):
        store.create("a/b", b"2")
    with pytest.raises(NotFoundError):
        store.read("a/c")
    assert counts(collectors) == {("create", "ok"): 2.0, ("read", "ok"): 1.0}


def test_a_fault_of_the_store_is_an_error(
    store: MeasuredStore, collectors: CollectorRegistry, tmp_path: Path
) -> None:
    broken = BlobRef(sha256="0" * 64, num_bytes=3)
    (tmp_path / "store/blobs/sha256").mkdir(parents=True)
    (tmp_path / f"store/blobs/sha256/{broken.sha256}").write_bytes(b"bad")
    with pytest.raises(StoreError):
        store.fetch_blob(broken, tmp_path / "copy")
    assert counts(collectors) == {("fetch_blob", "error"): 1.0}


def test_an_error_has_a_series_before_the_first_one(
    store: MeasuredStore, collectors: CollectorRegistry
) -> None:
    labels = {"operation": "read", "outcome": "error"}
    assert collectors.get_sample_value(STORE_REQUESTS.name, labels) == 0.0


def test_it_is_named_as_the_store_is(store: MeasuredStore, tmp_path: Path) -> None:
    assert str(tmp_path / "store") in repr(store)
