"""What is known of an engine beyond one process: that it failed here, and how long it may take."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.contracts.errors import EngineError, InvalidRequestError
from services.contracts.kserve.tensors import Array
from services.engines.base import LoadSpec
from services.engines.caches.passed_checks import name_here
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from services.replica.engine.checker import EngineChecker
from services.replica.engine.failure_notes import FailureNotes
from services.replica.engine.hang_watch import HangWatch
from services.replica.engine.loaded_engine import STALL_S, LoadedEngine
from services.replica.engine.manager import EngineManager
from services.replica.replica import Replica
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.recorder import NullRecorder
from tests.integration.replica.conftest import LoadAs, Serving, engine_of
from tests.integration.replica.held_engine import HeldEngine
from tests.integration.replica.published import (
    RECIPE,
    Shelf,
    assert_answers,
    host_of,
    ids_of,
    load_spec,
    request_of,
    typed,
)

STALLS_AT_ONCE = {"is_brief": False, "stall_s": 0.0}


def test_another_process_here_does_not_try_what_failed_in_one_before(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = FailureNotes(tmp_path / "failed")
    model = shelf.publish_model()
    broken = shelf.publish_engine("broken", speedup=9.0, files=typed(tmp_path / "t", b"no onnx"))
    shelf.publish_engine("good", speedup=2.0)
    host_of(shelf, model, notes).load().engine.close()
    tried: list[str] = []
    plain_load = OnnxruntimeEngine.load

    def load(spec: LoadSpec) -> OnnxruntimeEngine:
        tried.append(spec.directory.name)
        return plain_load(spec)

    monkeypatch.setattr(OnnxruntimeEngine, "load", load)
    found = host_of(shelf, model, notes).load()
    assert len(tried) == 1
    assert found.detail.startswith(f"{broken.digest[:12]}: EngineError: ONNX Runtime failed")
    assert "noted on this machine" in found.detail
    found.engine.close()


def test_what_failed_in_service_is_not_tried_by_the_process_that_comes_after(
    shelf: Shelf, tmp_path: Path
) -> None:
    notes = FailureNotes(tmp_path / "failed")
    model = shelf.publish_model()
    good = shelf.publish_engine("good", speedup=2.0)
    bad = shelf.publish_engine("bad", speedup=9.0)
    host, beside = host_of(shelf, model, notes), host_of(shelf, model, notes)
    host.load().engine.close()
    beside.load().engine.close()
    host.mark_failed(bad.digest, "failed in service: it hangs")
    found = host_of(shelf, model, notes).load()
    assert found.digest == good.digest
    found.engine.close()
    # Where it serves well it stays.
    assert not beside.choose(bad.digest).fetch()
    assert beside.choose(bad.digest).load() is None


def test_what_failed_in_service_after_the_offer_was_read_is_not_loaded(
    shelf: Shelf, tmp_path: Path
) -> None:
    model = shelf.publish_model()
    good = shelf.publish_engine("good", speedup=2.0)
    bad = shelf.publish_engine("bad", speedup=9.0)
    host = host_of(shelf, model, FailureNotes(tmp_path / "failed"))
    choice = host.choose(None)
    assert choice.fetch()
    host.mark_failed(bad.digest, "failed in service: it hangs")
    found = choice.load()
    assert found is not None
    assert (found.digest, "it hangs" in found.detail) == (good.digest, True)
    found.engine.close()


def test_how_long_a_fallback_takes_is_known_without_buckets_in_the_recipe(
    shelf: Shelf, tmp_path: Path
) -> None:
    """It is warmed at the sizes by default, which bound what it can be asked."""
    version = shelf.publish_model()
    recipe = version.recipe.model_copy(update={"buckets": ()})
    model = version.model_copy(update={"recipe": recipe})
    stand_in = OnnxruntimeEngine.load(load_spec(shelf, model))
    checker = EngineChecker(tmp_path)
    host = EngineManager(shelf.registry, model, shelf.device, lambda model: stand_in, checker)
    found = host.load()
    assert found.buckets == model.buckets
    assert found.stall_s < STALL_S
    found.engine.close()


async def test_without_a_recipe_no_batch_of_the_fallback_is_larger_than_an_engines(
    tmp_path: Path,
) -> None:
    shelf = Shelf(tmp_path, RECIPE.model_copy(update={"buckets": ()}))
    model = shelf.publish_model()
    stand_in = OnnxruntimeEngine.load(load_spec(shelf, model))
    checker = EngineChecker(tmp_path / "checked")
    host = EngineManager(shelf.registry, model, shelf.device, lambda model: stand_in, checker)
    replica = Replica(model, shelf.device, host, NullRecorder())
    await replica.load()
    try:
        await asyncio.gather(*(replica.infer(request_of(ids_of(1, 8))) for _ in range(40)))
        sizes = [each.batch_size for each in replica.statistics.message().batch_stats]
        assert max(sizes) == model.buckets[0].dims["batch"].max == 8
    finally:
        await replica.close()


async def test_without_a_recipe_fallback_and_engine_take_and_refuse_the_same_sizes(
    tmp_path: Path,
) -> None:
    """What the engine refuses, or needs longer for than any run timed, comes to neither."""
    shelf = Shelf(tmp_path, RECIPE.model_copy(update={"buckets": ()}))
    model = shelf.publish_model()
    checker = EngineChecker(tmp_path / "checked")
    host = EngineManager(
        shelf.registry,
        model,
        shelf.device,
        lambda model: OnnxruntimeEngine.load(load_spec(shelf, model)),
        checker,
    )
    replica = Replica(model, shelf.device, host, NullRecorder())
    await replica.load()
    try:
        for kind in ("fallback", "onnxruntime"):
            assert replica.loaded is not None
            assert replica.loaded.kind == kind
            largest = ids_of(8, 128)
            assert_answers(await replica.infer(request_of(largest)), largest)
            with pytest.raises(InvalidRequestError, match="batch-size must be <= 8"):
                await replica.infer(request_of(ids_of(16, 100)))
            with pytest.raises(InvalidRequestError, match="sequence' is 200, allowed is 1..128"):
                await replica.infer(request_of(ids_of(1, 200)))
            if kind == "fallback":
                shelf.publish_engine()
                assert await replica.reselect_engine()
    finally:
        await replica.close()


async def test_an_engine_that_hangs_as_a_replica_starts_is_not_taken_by_the_next_one(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, model = FailureNotes(tmp_path / "failed"), shelf.publish_model()
    good = shelf.publish_engine("good", speedup=2.0)
    bad = shelf.publish_engine("bad", speedup=9.0)
    is_held, may_load = threading.Event(), threading.Event()

    def hang(spec: LoadSpec) -> OnnxruntimeEngine:
        is_held.set()
        assert may_load.wait(60)
        raise RuntimeError("late")

    host = host_of(shelf, model, notes)
    replica = Replica(model, shelf.device, host, NullRecorder(), first_load_limit_s=3.0)
    with monkeypatch.context() as patch:
        patch.setattr(OnnxruntimeEngine, "load", hang)
        with pytest.raises(EngineError, match="'toy': it takes longer than 3 s to load"):
            await replica.load()
    assert is_held.is_set()
    may_load.set()
    await replica.close()
    found = host_of(shelf, model, notes).load()
    assert found.digest == good.digest
    assert f"{bad.digest[:12]}: EngineError: it takes longer" in found.detail
    found.engine.close()


async def test_an_engine_that_hangs_in_service_is_noted_and_the_one_before_answers(
    shelf: Shelf, serving: Serving, load_as: LoadAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.publish_model()
    good = shelf.publish_engine("good", speedup=2.0)
    server = await serving()
    bad = shelf.publish_engine("bad", speedup=9.0)
    load_as(**STALLS_AT_ONCE)
    assert await server.replica.reselect_engine()
    async with hung(server, monkeypatch) as answer:
        await server.check_health()
        assert_answers(await answer, ids_of(1, 2))
        assert loaded(server).digest == good.digest
    await server.stop(grace_s=0)
    again = loaded(await serving())
    assert again.digest == good.digest
    assert f"{bad.digest[:12]}: failed in service: engine has not returned" in again.detail


async def test_an_engine_that_hangs_alone_ends_its_replica_and_is_not_taken_again(
    shelf: Shelf, serving: Serving, load_as: LoadAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_as(**STALLS_AT_ONCE)
    shelf.publish_model()
    good = shelf.publish_engine("good", speedup=2.0)
    shelf.publish_engine("bad", speedup=9.0)
    server = await serving()
    async with hung(server, monkeypatch):
        with pytest.raises(EngineError, match="has not returned"):
            await server.check_health()
    await server.stop(grace_s=0)
    assert loaded(await serving()).digest == good.digest


async def test_an_engine_that_holds_the_event_loop_ends_its_process(
    shelf: Shelf, settings: ReplicaSettings, load_as: LoadAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_as(is_brief=True, stall_s=0.0)
    shelf.publish_model()
    good = shelf.publish_engine("good", speedup=2.0)
    bad = shelf.publish_engine("bad", speedup=9.0)
    server = ReplicaServer(settings, NullRecorder())
    await server.start()
    has_ended = threading.Event()
    watch = HangWatch(server.replica, has_ended.set, period_s=0.01)
    try:
        engine = engine_of(server)
        plain_run = engine.run

        def held_run(inputs: Mapping[str, Array]) -> dict[str, Array]:
            """Hold whatever thread it runs on until the watch acts, then compute."""
            assert has_ended.wait(30)
            return plain_run(inputs)

        monkeypatch.setattr(engine, "run", held_run)
        watch.start()
        assert_answers(await server.replica.infer(request_of(ids_of(1, 2))), ids_of(1, 2))
        assert has_ended.is_set()
    finally:
        watch.stop()
        await server.stop(grace_s=0)
    notes = FailureNotes(settings.cache_dir / "failed")
    name = name_here(bad.manifest, shelf.device, settings.num_threads)
    assert "holds the event loop" in notes.reason(name)
    assert notes.reason(name_here(good.manifest, shelf.device, settings.num_threads)) == ""


async def test_an_engine_on_its_own_thread_ends_no_process(
    shelf: Shelf, serving: Serving, load_as: LoadAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_as(**STALLS_AT_ONCE)
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    async with hung(server, monkeypatch):
        with pytest.raises(EngineError, match="has not returned"):
            await server.check_health()
        assert not server.replica.is_loop_held


def loaded(server: ReplicaServer) -> LoadedEngine:
    """The engine in use."""
    assert server.replica.loaded is not None
    return server.replica.loaded


@asynccontextmanager
async def hung(
    server: ReplicaServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[asyncio.Future[bytes]]:
    """A request that an engine of STALLS_AT_ONCE does not answer until the block ends."""
    held = HeldEngine(server, monkeypatch)
    answer = server.replica.infer(request_of(ids_of(1, 2)))
    await held.is_held.wait()
    yield answer
    held.may_go.set()
    await answer
