"""Live swaps: what the store has new is taken between two batches."""

import asyncio
from pathlib import Path

import pytest

from services.contracts.model.manifest import PublishedEngine
from services.contracts.selection.selection import FallbackReason
from services.pb import fleet_v1_pb2 as fleet
from services.replica.engine.loaded_engine import LoadedEngine
from services.replica.engine.manager import EngineManager

from .conftest import Serving, connected, engine_of, until
from .controller import TestController
from .published import (
    Shelf,
    assert_answers,
    ids_of,
    onnx_model,
    request_of,
    typed,
)


async def test_a_swap_under_load_loses_no_request(
    shelf: Shelf, controller: TestController, serving: Serving, tmp_path: Path
) -> None:
    model = shelf.publish_model()
    shelf.publish_engine("first", speedup=1.0)
    server = await serving()
    await until(controller, fleet.REPLICA_STATE_READY)
    swapped = asyncio.Event()
    num_answered = 0

    async def client(number: int) -> None:
        nonlocal num_answered
        async with connected(server.addresses[number % 2], server.token) as connection:
            num_after = 0
            while num_after < 20:
                ids = ids_of(1 + number % 4, 1 + number, first=num_answered)
                assert_answers(
                    await connection.infer(request_of(ids, f"{number}")), ids, f"{number}"
                )
                num_answered += 1
                num_after += swapped.is_set()

    clients = [asyncio.create_task(client(number)) for number in range(8)]
    digests = [server.replica.loaded.digest] if server.replica.loaded else []
    for speedup in (2.0, 3.0, 4.0):
        data = onnx_model().SerializeToString()
        engine = shelf.publish_engine(
            f"next-{speedup}", speedup=speedup, files=typed(tmp_path / f"t{speedup}", data)
        )
        changed = fleet.EnginesChanged(master_digest=model.master.digest)
        await controller.send(fleet.ReplicaCommand(engines_changed=changed))
        digest = engine.digest
        async with asyncio.timeout(60):
            await controller.report_where(lambda report, d=digest: report.engine_digest == d)
        digests.append(digest)
    swapped.set()
    await asyncio.gather(*clients)
    stats = server.replica.statistics.message().inference_stats
    assert (stats.success.count, stats.fail.count) == (num_answered, 0)
    assert len(set(digests)) == 4
    assert num_answered >= 160


async def test_an_engine_that_is_announced_while_the_first_one_loads_is_taken(
    shelf: Shelf, controller: TestController, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shelf.publish_model()
    shelf.publish_engine("first", speedup=1.0)
    better: list[PublishedEngine] = []
    plain_load = EngineManager.load

    async def announce() -> None:
        # A line that opens later would not hear it; there the controller says so by itself.
        await controller.report_where(lambda _: True)
        changed = fleet.EnginesChanged(master_digest=model.master.digest)
        await controller.send(fleet.ReplicaCommand(engines_changed=changed))

    def load_meanwhile(host: EngineManager) -> LoadedEngine:
        loaded = plain_load(host)
        better.append(shelf.publish_engine("better", speedup=2.0))
        asyncio.run_coroutine_threadsafe(announce(), loop).result(60)
        return loaded

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(EngineManager, "load", load_meanwhile)
    await serving()
    async with asyncio.timeout(60):
        await controller.report_where(lambda report: report.engine_digest == better[0].digest)


@pytest.mark.usefixtures("forked_children")
async def test_the_reason_for_the_fallback_is_that_of_now(
    shelf: Shelf, controller: TestController, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loaded before there was an engine; one that is passed over later has a reason too."""
    monkeypatch.setenv("PATH", "")  # it is eager then, which takes less time here
    shelf.publish_model()
    server = await serving()
    before = server.replica.loaded
    assert before is not None
    assert before.fallback_reason is FallbackReason.NO_ENGINE
    slower = shelf.publish_engine("slower", speed_over_fallback=0.5)
    assert not await server.replica.reselect_engine()
    async with asyncio.timeout(60):
        report = await controller.report_where(
            lambda report: report.fallback_reason == FallbackReason.SLOWER_THAN_FALLBACK
        )
    assert slower.digest[:12] in report.detail
    assert engine_of(server) is before.engine


async def test_news_of_no_better_engine_changes_nothing(
    shelf: Shelf, controller: TestController, serving: Serving
) -> None:
    shelf.publish_model()
    best = shelf.publish_engine("best", speedup=5.0)
    server = await serving()
    shelf.publish_engine("worse", speedup=2.0)
    assert not await server.replica.reselect_engine()
    assert server.replica.loaded is not None
    assert server.replica.loaded.digest == best.digest
