"""What speaks against an engine, for how long, and against which one nothing but its service."""

from pathlib import Path

import pytest

from services.contracts.errors import CheckUnfinishedError, EngineError, StoreError
from services.contracts.model.manifest import ProofOutcome, PublishedEngine
from services.replica.engine.failure_notes import FailureNotes
from services.replica.engine.failures import FIRST_CHECK_WAIT_S, FIRST_WAIT_S, EngineFailures
from tests.documents import small_key, small_manifest, small_proof
from tests.unit.services.replica.toy_batcher import Clock


def engine(name: str) -> PublishedEngine:
    key = small_key(builder_options={"name": name})
    return PublishedEngine(
        digest=name, manifest=small_manifest(key), proof=small_proof(ProofOutcome.PASSED)
    )


A, B = engine("a"), engine("b")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notes(tmp_path: Path, clock: Clock) -> FailureNotes:
    return FailureNotes(tmp_path / "failed", clock=clock)


@pytest.fixture
def failures(notes: FailureNotes, clock: Clock) -> EngineFailures:
    return EngineFailures(lambda each: each.digest, notes, clock)


FULL_DISK = EngineError("load: RuntimeError: a.so: No space left on device")


def of_memory() -> EngineError:
    error = EngineError("torch failed to load it")
    error.__cause__ = MemoryError()
    return error


@pytest.mark.parametrize(
    "error",
    [
        StoreError("away"),
        OSError(24, "Too many open files"),
        FULL_DISK,
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        EngineError("check of the engine in a child process ended with 1: OutOfMemoryError"),
        EngineError("check ended with -6: what():  std::bad_alloc"),
        EngineError("TensorRT made no execution context: out of device memory?"),
        EngineError("load: RuntimeException: Failed to allocate memory for requested buffer"),
        EngineError("load: RuntimeError: CUBLAS_STATUS_ALLOC_FAILED"),
        of_memory(),
    ],
    ids=lambda error: str(error)[-40:],
)
def test_what_was_once_out_of_reach_does_not_count_against_the_engine_in_use(
    failures: EngineFailures, notes: FailureNotes, clock: Clock, error: Exception
) -> None:
    assert "(tried again after 60 s)" in failures.add(A, error)
    assert list(failures.known((A, B), "b")) == list(failures.known((A, B), "")) == ["a"]
    assert failures.known((A, B), "a") == {}
    assert notes.reason("a") == ""
    clock.now_s += FIRST_WAIT_S
    assert failures.known((A, B), "b") == {}


def test_each_failure_in_a_row_waits_twice_as_long_up_to_an_hour(
    failures: EngineFailures, clock: Clock
) -> None:
    waits_s = []
    for _ in range(9):
        assert failures.add(A, StoreError("corrupt")).startswith("StoreError: corrupt (tried again")
        began_s = clock.now_s
        while failures.known((A,), ""):
            clock.now_s += 30.0
        waits_s.append(clock.now_s - began_s)
    assert waits_s[:3] == [60.0, 120.0, 240.0]
    assert waits_s[-1] == 3600.0
    failures.loaded("a")
    assert "after 60 s" in failures.add(A, OSError("no space left"))


def test_a_check_without_a_verdict_is_tried_again_later_and_keeps_no_other_process_away(
    failures: EngineFailures, notes: FailureNotes, clock: Clock
) -> None:
    for wait_s in (FIRST_CHECK_WAIT_S, 2 * FIRST_CHECK_WAIT_S):
        failures.add(A, CheckUnfinishedError("it did not end"))
        clock.now_s += wait_s - 1
        assert list(failures.known((A, B), "")) == ["a"]
        clock.now_s += 1
        assert failures.known((A, B), "") == {}
    assert notes.reason("a") == ""


def test_what_could_be_had_is_tried_at_once_the_next_time(failures: EngineFailures) -> None:
    failures.add(A, StoreError("away"))
    failures.loaded("a")
    assert failures.known((A, B), "b") == {}


def test_what_others_noted_does_not_count_against_the_engine_in_use(
    failures: EngineFailures, notes: FailureNotes
) -> None:
    notes.add("a", "it hangs")
    assert failures.known((A, B), "a") == {}
    assert failures.known((A, B), None)["a"].startswith("it hangs (noted on this machine")


def test_what_failed_in_service_counts_also_while_it_is_in_use(
    failures: EngineFailures, notes: FailureNotes
) -> None:
    failures.known((A, B), None)
    failures.loaded("a")
    failures.mark_failed("a", "it hangs")
    assert failures.known((A, B), "a") == {"a": "it hangs"}
    assert notes.reason("a").startswith("it hangs")


def test_what_hangs_as_it_is_loaded_is_noted_for_other_processes(
    failures: EngineFailures, notes: FailureNotes
) -> None:
    failures.known((A, B), "b")
    failures.mark_failed("a", "it takes longer than 3600 s to load")
    assert notes.reason("a").startswith("it takes longer")
    assert notes.reason("b") == ""


def test_what_is_published_no_more_and_the_fallback_are_not_noted(
    failures: EngineFailures, notes: FailureNotes, tmp_path: Path
) -> None:
    failures.known((A, B), "a")
    failures.known((B,), "a")
    for digest in ("a", ""):
        failures.mark_failed(digest, "it hangs")
    assert not (tmp_path / "failed").exists()
    assert failures.known((B,), "a") == {"a": "it hangs", "": "it hangs"}


def test_what_failed_to_load_is_noted_when_its_library_says_so(
    failures: EngineFailures, notes: FailureNotes, clock: Clock
) -> None:
    failures.add(A, EngineError("no engine"))
    failures.add(B, ValueError("who knows"))
    clock.now_s += 100 * FIRST_WAIT_S
    known = failures.known((A, B), "")
    assert known == {"a": "EngineError: no engine", "b": "ValueError: who knows"}
    clock.now_s -= 100 * FIRST_WAIT_S
    assert notes.reason("a").startswith("EngineError: no engine")
    assert notes.reason("b") == ""
