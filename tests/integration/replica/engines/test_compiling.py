"""The fallback is compiled beside what serves; neither news nor a stop waits for it."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.contracts.errors import EngineError
from services.contracts.model.manifest import ModelVersion
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from services.replica.engine.failure_notes import FailureNotes
from services.replica.engine.failures import FIRST_WAIT_S
from services.replica.engine.loaded_engine import (
    FallbackLoader,
    LoadedEngine,
    RunningEngine,
)
from services.replica.engine.worker import MAX_FAILURES_IN_A_ROW
from services.replica.replica import Replica
from services.telemetry.recorder import NullRecorder
from tests.integration.replica.published import (
    Shelf,
    assert_answers,
    host_of,
    ids_of,
    request_of,
)
from tests.integration.replica.test_checked_fallback import ScaledFallback, judged
from tests.integration.replica.test_standby import BAD_IDS, assert_served, break_engine
from tests.unit.services.replica.toy_batcher import Clock

IN_PLACE = "ONNX Runtime serves in place of torch.compile, which failed here: "


class HeldFallback(ScaledFallback):
    """A fallback whose compiler waits for the test, and raises what the test says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 1.0)
        self.is_held, self.may_go = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.engines: list[RunningEngine] = []
        self.num_asked = 0

    def __call__(self, model: ModelVersion) -> RunningEngine:
        self.num_asked += 1
        self.is_held.set()
        assert self.may_go.wait(60)
        if self.error:
            raise self.error
        self.engines.append(super().__call__(model))
        return self.engines[-1]


@dataclass
class Watched:
    """A replica, and waiting for what it serves with."""

    shelf: Shelf
    folder: Path
    fallback: FallbackLoader
    limit_s: float = 3600.0
    clock: Clock = field(default_factory=Clock)
    notes: FailureNotes | None = None

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()
        model = judged(self.shelf, self.folder)
        host = host_of(self.shelf, model, self.notes, clock=self.clock, fallback=self.fallback)
        self.replica = Replica(
            model,
            self.shelf.device,
            host,
            NullRecorder(),
            on_change=self._changed.set,
            standby_s=300.0,
            load_limit_s=self.limit_s,
        )

    async def until(self, is_wanted: Callable[[LoadedEngine], object]) -> LoadedEngine:
        """What serves, once it is what is wanted."""
        async with asyncio.timeout(60):
            while not (self.replica.loaded and is_wanted(self.replica.loaded)):
                self._changed.clear()
                await self._changed.wait()
        return self.replica.loaded

    async def compile(self) -> None:
        """As news have it; returns while it is compiled."""
        assert not await self.replica.reselect_engine()


def words_of(loaded: LoadedEngine) -> str:
    return loaded.refutation.words if loaded.refutation else ""


# ---------------------------------------------------------------- a compiler that fails


@pytest.mark.parametrize("error", [EngineError("no memory"), OSError("disk"), RuntimeError("g++")])
async def test_whatever_it_failed_on_it_is_compiled_again_after_a_growing_pause(
    shelf: Shelf, tmp_path: Path, error: Exception
) -> None:
    fallback = HeldFallback(tmp_path)
    fallback.may_go.set()
    fallback.error = error
    watched = Watched(shelf, tmp_path, fallback)
    await watched.replica.load()
    for pause_s in (60, 120, 240):
        await watched.compile()
        loaded = await watched.until(lambda loaded, p=pause_s: f"after {p} s" in words_of(loaded))
        assert words_of(loaded) == (
            f"{IN_PLACE}{type(error).__name__}: {error} (tried again after {pause_s} s)"
        )
        fallback.is_held.clear()
        watched.clock.now_s += pause_s - 1
        await watched.compile()
        assert not fallback.is_held.is_set()
        watched.clock.now_s += 1
    fallback.error = None
    await watched.compile()
    loaded = await watched.until(lambda loaded: not loaded.is_interim)
    assert (loaded.engine, words_of(loaded)) == (fallback.engines[0], "")
    assert not await watched.replica.reselect_engine()
    await watched.replica.close()


async def test_slower_engines_are_taken_only_while_there_is_no_fallback(
    shelf: Shelf, tmp_path: Path
) -> None:
    fallback = HeldFallback(tmp_path)
    fallback.may_go.set()
    fallback.error = OSError("disk")
    watched = Watched(shelf, tmp_path, fallback)
    await watched.replica.load()
    await watched.compile()
    await watched.until(words_of)
    slower = shelf.publish_engine("slower", speed_over_fallback=0.5)
    assert await watched.replica.reselect_engine()
    assert (await watched.until(lambda _: True)).digest == slower.digest
    assert not await watched.replica.reselect_engine()
    fallback.error = None
    watched.clock.now_s += FIRST_WAIT_S
    await watched.compile()
    loaded = await watched.until(lambda loaded: not loaded.digest)
    assert loaded.engine is fallback.engines[0]
    await watched.replica.close()


async def test_a_passing_error_at_the_start_does_not_leave_a_slower_engine_for_good(
    shelf: Shelf, tmp_path: Path
) -> None:
    fallback = HeldFallback(tmp_path)
    fallback.may_go.set()
    fallback.error = OSError("disk")
    slower = shelf.publish_engine("slower", speed_over_fallback=0.5)
    clock = Clock()
    host = host_of(shelf, shelf.publish_model(), clock=clock, fallback=fallback)
    first = host.load()
    assert first.digest == slower.digest
    assert not host.choose(slower.digest).fetch()
    fallback.error = None
    clock.now_s += FIRST_WAIT_S
    assert host.choose(slower.digest).fetch()
    again = host.choose(slower.digest).load()
    assert again is not None
    assert again.engine is fallback.engines[0]
    for loaded in (first, again):
        loaded.engine.close()


# ---------------------------------------------------------------- beside the compiler


async def test_an_engine_that_comes_while_it_is_compiled_is_taken_at_once(
    shelf: Shelf, tmp_path: Path
) -> None:
    fallback = HeldFallback(tmp_path)
    watched = Watched(shelf, tmp_path, fallback)
    replica = watched.replica
    await replica.load()
    await watched.compile()
    assert await asyncio.to_thread(fallback.is_held.wait, 60)
    await watched.compile()
    engine = shelf.publish_engine()
    assert await replica.reselect_engine()
    assert (await watched.until(lambda _: True)).digest == engine.digest
    closed = asyncio.Event()
    loop, plain_close = asyncio.get_running_loop(), OnnxruntimeEngine.close

    def close(late: OnnxruntimeEngine) -> None:
        plain_close(late)
        if late in fallback.engines:
            loop.call_soon_threadsafe(closed.set)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnnxruntimeEngine, "close", close)
        fallback.may_go.set()
        async with asyncio.timeout(60):
            await closed.wait()
    assert (await watched.until(lambda _: True)).digest == engine.digest
    # Other news began no second compile.
    assert fallback.num_asked == 1
    assert_answers(await replica.infer(request_of(ids_of(2, 3))), ids_of(2, 3))
    await replica.close()


async def test_a_stop_does_not_wait_for_it(shelf: Shelf, tmp_path: Path) -> None:
    fallback = HeldFallback(tmp_path)
    watched = Watched(shelf, tmp_path, fallback)
    await watched.replica.load()
    await watched.compile()
    assert await asyncio.to_thread(fallback.is_held.wait, 60)
    async with asyncio.timeout(60):
        await watched.replica.close()
    assert not fallback.engines
    # Nothing is left that would put it in.
    assert "fallback" not in [task.get_name() for task in asyncio.all_tasks()]
    fallback.may_go.set()


async def test_one_that_takes_too_long_counts_as_failed_until_it_ends(
    shelf: Shelf, tmp_path: Path
) -> None:
    fallback = HeldFallback(tmp_path)
    watched = Watched(shelf, tmp_path, fallback, limit_s=0.0)
    await watched.replica.load()
    await watched.compile()
    assert await asyncio.to_thread(fallback.is_held.wait, 60)
    await watched.compile()
    loaded = await watched.until(words_of)
    assert words_of(loaded) == f"{IN_PLACE}it takes longer than 0 s"
    # Its thread cannot be ended: no second one is begun beside it.
    fallback.is_held.clear()
    watched.clock.now_s += 100 * FIRST_WAIT_S
    await watched.compile()
    assert not fallback.is_held.is_set()
    fallback.may_go.set()
    loaded = await watched.until(lambda loaded: not loaded.is_interim)
    assert (loaded.engine, words_of(loaded)) == (fallback.engines[0], "")
    # It is there after all: nothing slower is taken.
    shelf.publish_engine("slower", speed_over_fallback=0.5)
    assert not await watched.replica.reselect_engine()
    assert (await watched.until(lambda _: True)).engine is fallback.engines[0]
    await watched.replica.close()


# ---------------------------------------------------------------- what was compiled fails


async def test_what_answered_before_serves_again_by_its_own_name_and_for_good(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallback = ScaledFallback(tmp_path, 1.0)
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
    loaded = await watched.until(lambda loaded: loaded.is_interim)
    # No engine failed to load: there is still none.
    assert (loaded.engine.name, loaded.fallback_reason) == ("ONNX Runtime", "no_engine")
    watched.clock.now_s += 100 * FIRST_WAIT_S
    await watched.compile()
    loaded = await watched.until(words_of)
    assert words_of(loaded).startswith(f"{IN_PLACE}failed in service: engine fails on inputs")
    assert fallback.num_loaded == 1
    await replica.close()
