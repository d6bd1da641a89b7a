"""An engine that fails in service: the one before it answers, and takes over when it must."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper
from prometheus_client import CollectorRegistry

from services.contracts.errors import EngineError
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from services.replica.engine.checker import EngineChecker
from services.replica.engine.loaded_engine import RunningEngine
from services.replica.engine.manager import EngineManager
from services.replica.engine.worker import MAX_FAILURES_IN_A_ROW
from services.replica.replica import Replica
from services.telemetry.catalog import REPLICA_METRICS
from services.telemetry.prometheus_recorder import PrometheusRecorder

from .published import (
    NUM_ROWS,
    Shelf,
    assert_answers,
    ids_of,
    load_spec,
    onnx_model,
    request_of,
    table,
    typed,
)

# Rows that the bad engine has; warming up uses the first ones only.
NUM_GOOD_ROWS = NUM_ROWS // 2
BAD_IDS = np.full((1, 2), NUM_GOOD_ROWS)
# Every engine fails on them.
POISON_IDS = np.full((1, 2), NUM_ROWS)
Start = Callable[[float], Awaitable[Replica]]


def publish_bad(shelf: Shelf, folder: Path) -> PublishedEngine:
    """An engine with half of the table: it loads, warms up, and fails on the other half."""
    model = onnx_model()
    (weights,) = (each for each in model.graph.initializer if each.name == "table")
    weights.CopyFrom(numpy_helper.from_array(table()[:NUM_GOOD_ROWS], "table"))
    files = typed(folder / "bad", model.SerializeToString())
    return shelf.publish_engine("bad", speedup=9.0, files=files)


@pytest.fixture
def metrics() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def start(shelf: Shelf, tmp_path: Path, metrics: CollectorRegistry) -> AsyncIterator[Start]:
    """Starts a replica that keeps the engine before for so long."""
    model, started = shelf.publish_model(), []

    def fallback(model: ModelVersion) -> RunningEngine:
        return OnnxruntimeEngine.load(load_spec(shelf, model))

    async def started_with(standby_s: float) -> Replica:
        checker = EngineChecker(tmp_path / "checked")
        host = EngineManager(shelf.registry, model, shelf.device, fallback, checker, num_threads=1)
        recorder = PrometheusRecorder(REPLICA_METRICS, metrics)
        replica = Replica(model, shelf.device, host, recorder, standby_s=standby_s)
        started.append(replica)
        await replica.load()
        return replica

    yield started_with
    for replica in started:
        await replica.close()


def digest_in_use(replica: Replica) -> str:
    assert replica.loaded is not None
    return replica.loaded.digest


async def assert_served(replica: Replica, ids: Array) -> None:
    assert_answers(await replica.infer(request_of(ids)), ids)


def break_engine(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, *, max_good_size: int = 0
) -> None:
    """Lose the device of the engine in use, or what it needs for all but its smallest batch."""
    assert replica.loaded is not None
    engine = replica.loaded.engine
    plain_run = engine.run

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if inputs["ids"].size > max_good_size:
            raise RuntimeError("device lost")
        return plain_run(inputs)

    monkeypatch.setattr(engine, "run", run)


async def swapped_to_bad(
    shelf: Shelf, start: Start, folder: Path
) -> tuple[Replica, PublishedEngine]:
    """A replica in which an engine that fails on BAD_IDS has taken a good one's place."""
    shelf.publish_engine("good", speedup=2.0)
    replica = await start(300.0)
    bad = publish_bad(shelf, folder)
    assert await replica.reselect_engine()
    return replica, bad


async def test_a_row_of_failures_returns_to_the_engine_before(
    shelf: Shelf, start: Start, metrics: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = shelf.publish_engine("good", speedup=2.0)
    replica = await start(300.0)
    bad = shelf.publish_engine("bad", speedup=9.0)
    assert await replica.reselect_engine()
    break_engine(replica, monkeypatch)
    for number in range(MAX_FAILURES_IN_A_ROW):
        assert digest_in_use(replica) == bad.digest, number
        await assert_served(replica, BAD_IDS)
    assert digest_in_use(replica) == bad.digest
    await replica.check_health()
    assert digest_in_use(replica) == good.digest
    assert replica.loaded is not None
    assert f"engine {bad.digest[:12]} failed in service" in replica.loaded.detail
    assert replica.loaded.fallback_reason is None
    labels = {"model": "toy", "version": "1", "kind": "onnxruntime"}
    of_here = labels | {"generation": shelf.device.generation}
    assert metrics.get_sample_value("smelt_engine_returns_total", of_here) == 1
    await assert_served(replica, BAD_IDS)
    # The bad one is not tried again here; a better one is.
    assert not await replica.reselect_engine()
    best = shelf.publish_engine("best", speedup=12.0)
    assert await replica.reselect_engine()
    assert digest_in_use(replica) == best.digest
    assert replica.statistics.message().inference_stats.fail.count == 0


async def test_a_row_of_bad_requests_does_not_depose_an_engine_that_proves_itself(
    shelf: Shelf, start: Start, tmp_path: Path
) -> None:
    replica, half = await swapped_to_bad(shelf, start, tmp_path)
    for _ in range(2 * MAX_FAILURES_IN_A_ROW):
        await assert_served(replica, BAD_IDS)
        await replica.check_health()
    assert digest_in_use(replica) == half.digest
    assert replica.statistics.message().inference_stats.fail.count == 0


async def test_one_failure_is_answered_and_the_engine_stays(
    shelf: Shelf, start: Start, tmp_path: Path
) -> None:
    replica, bad = await swapped_to_bad(shelf, start, tmp_path)
    for _ in range(MAX_FAILURES_IN_A_ROW):
        await assert_served(replica, BAD_IDS)
        await assert_served(replica, ids_of(2, 3))
    assert digest_in_use(replica) == bad.digest


async def test_the_fallback_is_returned_to_with_its_new_reason(
    shelf: Shelf, start: Start, metrics: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await start(300.0)
    shelf.publish_engine("bad", speedup=9.0)
    assert await replica.reselect_engine()
    break_engine(replica, monkeypatch)
    for _ in range(MAX_FAILURES_IN_A_ROW + 1):
        await assert_served(replica, BAD_IDS)
    await replica.check_health()
    assert replica.loaded is not None
    assert (replica.loaded.kind, replica.loaded.fallback_reason) == ("fallback", "load_failed")
    labels = {"model": "toy", "version": "1", "generation": shelf.device.generation}
    chosen = metrics.get_sample_value("smelt_fallbacks_total", labels | {"reason": "load_failed"})
    assert chosen == 1
    assert not await replica.reselect_engine()


async def test_requests_that_every_engine_fails_on_change_nothing(
    shelf: Shelf, start: Start
) -> None:
    shelf.publish_engine("first", speedup=2.0)
    replica = await start(300.0)
    second = shelf.publish_engine("second", speedup=4.0)
    assert await replica.reselect_engine()
    for _ in range(MAX_FAILURES_IN_A_ROW + 1):
        with pytest.raises(EngineError):
            await replica.infer(request_of(POISON_IDS))
    await replica.check_health()
    assert digest_in_use(replica) == second.digest
    await assert_served(replica, BAD_IDS)


async def swapped(shelf: Shelf, start: Start) -> tuple[PublishedEngine, Replica]:
    """A replica that serves with another engine; the good one that it had before stands by."""
    good = shelf.publish_engine("good", speedup=2.0)
    replica = await start(300.0)
    shelf.publish_engine("other", speedup=4.0)
    assert await replica.reselect_engine()
    return good, replica


async def test_the_health_check_returns_to_the_engine_before_too(
    shelf: Shelf, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, replica = await swapped(shelf, start)
    break_engine(replica, monkeypatch)
    for _ in range(MAX_FAILURES_IN_A_ROW):
        # The engine before fails on these too, so nothing speaks against the one in use yet.
        with pytest.raises(EngineError):
            await replica.infer(request_of(POISON_IDS))
    await replica.check_health()
    assert digest_in_use(replica) == good.digest
    await assert_served(replica, BAD_IDS)
    await replica.check_health()


async def test_an_engine_that_fails_on_all_but_its_smallest_batch_is_left(
    shelf: Shelf, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, replica = await swapped(shelf, start)
    break_engine(replica, monkeypatch, max_good_size=1)
    for _ in range(MAX_FAILURES_IN_A_ROW):
        await assert_served(replica, BAD_IDS)
    await replica.check_health()
    assert digest_in_use(replica) == good.digest


async def test_without_an_engine_before_one_that_runs_its_smallest_batch_alone_is_no_good(
    shelf: Shelf, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.publish_engine("only", speedup=2.0)
    replica = await start(0.0)
    break_engine(replica, monkeypatch, max_good_size=1)
    for _ in range(MAX_FAILURES_IN_A_ROW):
        with pytest.raises(EngineError):
            await replica.infer(request_of(BAD_IDS))
    with pytest.raises(EngineError, match="known to be good: device lost"):
        await replica.check_health()


async def test_without_an_engine_before_a_bad_one_fails_its_requests(
    shelf: Shelf, start: Start, tmp_path: Path
) -> None:
    shelf.publish_engine("good", speedup=2.0)
    replica = await start(0.0)
    bad = publish_bad(shelf, tmp_path)
    assert await replica.reselect_engine()
    for _ in range(MAX_FAILURES_IN_A_ROW + 1):
        with pytest.raises(EngineError):
            await replica.infer(request_of(BAD_IDS))
    assert digest_in_use(replica) == bad.digest


async def test_the_engine_before_is_closed_when_nobody_needed_it_for_a_while(
    shelf: Shelf, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shelf.publish_engine("first", speedup=2.0)
    replica = await start(0.01)
    assert digest_in_use(replica) == first.digest
    assert replica.loaded is not None
    loop, engine, closed = asyncio.get_running_loop(), replica.loaded.engine, asyncio.Event()
    plain_close = engine.close

    def close() -> None:
        plain_close()
        loop.call_soon_threadsafe(closed.set)

    monkeypatch.setattr(engine, "close", close)
    shelf.publish_engine("second", speedup=4.0)
    assert await replica.reselect_engine()
    async with asyncio.timeout(60):
        await closed.wait()
    await assert_served(replica, ids_of(2, 3))


async def test_the_engine_before_is_closed_before_another_one_is_loaded(
    shelf: Shelf, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[OnnxruntimeEngine] = []
    most = 0
    plain_load, plain_close = OnnxruntimeEngine.load.__func__, OnnxruntimeEngine.close  # type: ignore[attr-defined]

    def load(cls: type[OnnxruntimeEngine], *args: object) -> OnnxruntimeEngine:
        nonlocal most
        engine: OnnxruntimeEngine = plain_load(cls, *args)
        loaded.append(engine)
        most = max(most, len(loaded))
        return engine

    def close(engine: OnnxruntimeEngine) -> None:
        loaded.remove(engine)
        plain_close(engine)

    monkeypatch.setattr(OnnxruntimeEngine, "load", classmethod(load))
    monkeypatch.setattr(OnnxruntimeEngine, "close", close)
    shelf.publish_engine("e1", speedup=1.0)
    replica = await start(300.0)
    for speedup in (2.0, 3.0, 4.0):
        shelf.publish_engine(f"e{speedup}", speedup=speedup)
        assert await replica.reselect_engine()
    assert (len(loaded), most) == (2, 2)
    await replica.close()
    assert loaded == []
