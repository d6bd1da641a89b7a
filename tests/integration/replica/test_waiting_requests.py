"""Requests that wait for a busy engine: batched, refused, expired, answered before a drain."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from services.contracts.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
)
from services.contracts.transport.frames import InferFrame
from services.pb import fleet_v1_pb2 as fleet
from services.pb import open_inference_v2_pb2 as pb
from services.replica.transport.data_server import DataServer

from .conftest import Serving, connected, until
from .controller import TestController
from .held_engine import HeldEngine
from .published import Shelf, assert_answers, ids_of, request_of


@pytest.mark.usefixtures("own_thread")
async def test_statistics_are_the_protocols(
    shelf: Shelf, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    async with connected(server.addresses[0], server.token) as connection:
        held = HeldEngine(server, monkeypatch)
        first = asyncio.create_task(connection.infer(request_of(ids_of(1, 2))))
        await held.is_held.wait()
        # Two more of other lengths wait together: they run as one batch of 5 rows.
        more = [
            asyncio.ensure_future(server.replica.infer(request_of(ids_of(n, n)))) for n in (2, 3)
        ]
        await asyncio.sleep(0)
        held.may_go.set()
        await asyncio.gather(first, *more)
        with pytest.raises(InvalidRequestError):
            await connection.infer(request_of(ids_of(9, 2)))
        stats = await connection.statistics()
    total = stats.inference_stats
    assert (stats.name, stats.version) == ("toy", "1")
    assert (stats.inference_count, stats.execution_count) == (6, 2)
    assert (total.success.count, total.fail.count, total.queue.count) == (3, 1, 3)
    counts = {total.compute_input.count, total.compute_infer.count, total.compute_output.count}
    assert counts == {3}
    assert [(b.batch_size, b.compute_infer.count) for b in stats.batch_stats] == [(1, 1), (5, 1)]
    assert total.compute_infer.ns > 0
    assert total.success.ns >= total.queue.ns
    assert stats.last_inference > 1_600_000_000_000


@pytest.mark.parametrize("bound", ["max_queue", "max_queue_bytes"])
@pytest.mark.usefixtures("own_thread")
async def test_overload_while_the_engine_is_busy(
    shelf: Shelf, serving: Serving, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.publish_model(**{bound: 1})
    shelf.publish_engine()
    server = await serving()
    held = HeldEngine(server, monkeypatch)
    async with connected(server.addresses[0], server.token) as connection:
        running = asyncio.create_task(connection.infer(request_of(ids_of(1, 2))))
        await held.is_held.wait()
        waiting = asyncio.ensure_future(server.replica.infer(request_of(ids_of(1, 3))))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match=f"maximum queue size.* {bound} in") as refused:
            async with asyncio.timeout(30):
                await connection.infer(request_of(ids_of(1, 4)))
        assert refused.value.retry_after_s > 0
        held.may_go.set()
        assert_answers(await running, ids_of(1, 2))
        assert_answers(await waiting, ids_of(1, 3))


@pytest.mark.usefixtures("own_thread")
async def test_a_deadline_that_passes_in_the_queue(
    shelf: Shelf, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Callable[[InferFrame], asyncio.Future[bytes]]] = []

    class TellingServer(DataServer):
        """Tells what takes its frames: over a connection, a client may give up first."""

        def __init__(self, infer: Any, *others: Any, **options: Any) -> None:
            taken.append(infer)
            super().__init__(infer, *others, **options)

    monkeypatch.setattr("services.replica.server.DataServer", TellingServer)
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    held = HeldEngine(server, monkeypatch)
    async with connected(server.addresses[0], server.token) as connection:
        running = asyncio.create_task(connection.infer(request_of(ids_of(1, 2))))
        await held.is_held.wait()
        by_frame = taken[0](InferFrame(request_of(ids_of(2, 2)), deadline_s=0.0))
        with_timeout = pb.ModelInferRequest.FromString(request_of(ids_of(2, 2)))
        with_timeout.parameters["timeout"].int64_param = 1
        by_parameter = asyncio.create_task(connection.infer(with_timeout.SerializeToString()))
        # Answered in order, so the request above is in the queue when this one comes back.
        await connection.statistics()
        held.may_go.set()
        assert_answers(await running, ids_of(1, 2))
        for late in (by_frame, by_parameter):
            with pytest.raises(DeadlineExceededError, match="never ran"):
                await late
    assert server.replica.statistics.message().execution_count == 1


@pytest.mark.usefixtures("own_thread")
async def test_a_replica_that_stops_answers_what_was_accepted(
    shelf: Shelf, controller: TestController, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    await until(controller, fleet.REPLICA_STATE_READY)
    held = HeldEngine(server, monkeypatch)
    async with connected(server.addresses[0], server.token) as connection:
        accepted = asyncio.create_task(connection.infer(request_of(ids_of(1, 2))))
        await held.is_held.wait()
        stopping = asyncio.create_task(server.stop())
        await until(controller, fleet.REPLICA_STATE_DRAINING)
        assert not stopping.done()
        held.may_go.set()
        assert_answers(await accepted, ids_of(1, 2))
        async with asyncio.timeout(30):
            await stopping
        with pytest.raises(NotReadyError):
            await connection.infer(request_of(ids_of(1, 2)))
