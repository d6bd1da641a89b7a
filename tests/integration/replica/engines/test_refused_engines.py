"""An engine that may serve no longer, and what else becomes of engines while a compiler works."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from services.contracts.errors import EngineError
from services.contracts.model.manifest import ProofOutcome, PublishedEngine
from services.engines.base import LoadSpec
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from services.replica.engine.failure_notes import FailureNotes
from services.replica.engine.failures import FIRST_WAIT_S
from services.replica.engine.loaded_engine import LoadedEngine
from services.replica.engine.worker import MAX_FAILURES_IN_A_ROW
from tests.integration.replica.engines.test_compiling import HeldFallback, Watched, words_of
from tests.integration.replica.published import Shelf, host_of, ids_of
from tests.integration.replica.test_checked_fallback import judged
from tests.integration.replica.test_standby import BAD_IDS, assert_served, break_engine


def refute(shelf: Shelf, engine: PublishedEngine) -> None:
    failed = {"outcome": ProofOutcome.FAILED, "reason": "on purpose"}
    shelf.registry.add_proof(engine.digest, engine.proof.model_copy(update=failed))


async def now(watched: Watched) -> LoadedEngine:
    return await watched.until(lambda _: True)


async def test_a_refuted_engine_does_not_serve_on_while_the_fallback_is_compiled(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, fallback = shelf.publish_engine(), HeldFallback(tmp_path)
    watched = Watched(shelf, tmp_path, fallback)
    replica = watched.replica
    await replica.load()
    assert (await now(watched)).digest == engine.digest
    refute(shelf, engine)
    assert await replica.reselect_engine()
    loaded = await now(watched)
    assert (loaded.digest, loaded.is_interim, words_of(loaded)) == ("", True, "")
    assert loaded.fallback_reason == "not_proven"
    await assert_served(replica, ids_of(2, 3))
    # Nor as a standby: what fails now fails.
    with monkeypatch.context() as patch:
        break_engine(replica, patch)
        with pytest.raises(Exception, match="device lost"):
            await assert_served(replica, ids_of(2, 3))
    fallback.may_go.set()
    loaded = await watched.until(lambda loaded: not loaded.is_interim)
    assert loaded.engine is fallback.engines[0]
    await replica.close()


async def test_a_refuted_engine_does_not_serve_on_where_the_fallback_failed_for_good(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallback = HeldFallback(tmp_path)
    fallback.may_go.set()
    watched = Watched(shelf, tmp_path, fallback)
    replica = watched.replica
    await replica.load()
    await watched.compile()
    await watched.until(lambda loaded: not loaded.is_interim)
    with monkeypatch.context() as patch:
        break_engine(replica, patch)
        for _ in range(MAX_FAILURES_IN_A_ROW):
            await assert_served(replica, BAD_IDS)
        await replica.check_health()
    # At once, before the store is looked at: it is not being compiled.
    failed = await watched.until(lambda loaded: loaded.is_interim)
    assert "failed here: failed in service" in words_of(failed)
    slower = shelf.publish_engine("slower", speed_over_fallback=0.5)
    assert await replica.reselect_engine()
    assert (await now(watched)).digest == slower.digest
    refute(shelf, slower)
    assert await replica.reselect_engine()
    loaded = await now(watched)
    assert (loaded.digest, loaded.engine.name) == ("", "ONNX Runtime")
    assert "failed here: failed in service" in words_of(loaded)
    await replica.close()


async def test_where_nothing_else_can_be_had_a_refuted_engine_is_complained_of(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, fallback = shelf.publish_engine(), HeldFallback(tmp_path)
    fallback.may_go.set()
    fallback.error = OSError("disk")
    watched = Watched(shelf, tmp_path, fallback)
    await watched.replica.load()
    refute(shelf, engine)
    with monkeypatch.context() as patch:
        patch.delattr(OnnxruntimeEngine, "of_master")
        assert not await watched.replica.reselect_engine()
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "is no longer permitted (proof or signature) and still serves" in said[-1].getMessage()
    assert "proof failed: on purpose" in said[-1].getMessage()
    await watched.replica.close()


async def test_a_slower_engine_that_is_refuted_while_the_compiler_fails_is_not_taken(
    shelf: Shelf, tmp_path: Path
) -> None:
    fallback = HeldFallback(tmp_path)
    fallback.error = OSError("disk")
    watched = Watched(shelf, tmp_path, fallback)
    await watched.replica.load()
    refuted = shelf.publish_engine("refuted", speedup=9.0, speed_over_fallback=0.5)
    proven = shelf.publish_engine("proven", speed_over_fallback=0.5)
    await watched.compile()
    assert await asyncio.to_thread(fallback.is_held.wait, 60)
    refute(shelf, refuted)
    fallback.may_go.set()
    loaded = await watched.until(lambda loaded: loaded.digest)
    assert loaded.digest == proven.digest
    await watched.replica.close()


async def test_an_engine_that_does_not_fit_beside_a_compiler_is_tried_again(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallback, notes = HeldFallback(tmp_path), FailureNotes(tmp_path / "failed")
    watched = Watched(shelf, tmp_path, fallback, notes=notes)
    await watched.replica.load()
    await watched.compile()
    assert await asyncio.to_thread(fallback.is_held.wait, 60)
    engine = shelf.publish_engine()

    def full(spec: LoadSpec) -> OnnxruntimeEngine:
        raise RuntimeError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(OnnxruntimeEngine, "load", full)
        assert not await watched.replica.reselect_engine()
    watched.clock.now_s += FIRST_WAIT_S
    assert await watched.replica.reselect_engine()
    assert (await now(watched)).digest == engine.digest
    assert host_of(shelf, judged(shelf, tmp_path), notes).load().digest == engine.digest
    fallback.may_go.set()
    await watched.replica.close()


async def test_an_engine_that_hangs_as_it_loads_does_not_end_all_later_swaps(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, may_load = shelf.publish_engine(), threading.Event()
    watched = Watched(shelf, tmp_path, HeldFallback(tmp_path), limit_s=0.0)
    replica = watched.replica
    await replica.load()
    shelf.publish_engine("hanging", speedup=2.0)

    def hang(spec: LoadSpec) -> OnnxruntimeEngine:
        assert may_load.wait(60)
        raise RuntimeError("late")

    with monkeypatch.context() as patch:
        patch.setattr(OnnxruntimeEngine, "load", hang)
        with pytest.raises(EngineError, match="longer than 0 s to load"):
            await replica.reselect_engine()
        # The other one is in use, and the next look is free to find so.
        assert not await replica.reselect_engine()
        assert (await now(watched)).digest == first.digest
        may_load.set()
    await replica.close()
