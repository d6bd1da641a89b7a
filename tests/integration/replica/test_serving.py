"""A replica from start to stop: real store, real engine, real sockets, real control line."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from services.contracts.errors import (
    DeadlineExceededError,
    EngineError,
    InputRefusedError,
    InvalidRequestError,
    NotFoundError,
    NotReadyError,
    OverloadedError,
)
from services.contracts.kserve.tensors import Array
from services.contracts.transport.frames import InferFrame
from services.pb import fleet_v1_pb2 as fleet
from services.pb import open_inference_v2_pb2 as pb
from services.replica.engine.worker import MAX_FAILURES_IN_A_ROW
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.replica.transport.data_server import DataServer
from services.telemetry.recorder import NullRecorder

from .conftest import Serving, connected, engine_of, until
from .controller import TestController
from .published import NUM_ROWS, RECIPE, WIDTH, Shelf, assert_answers, ids_of, request_of


class HeldEngine:
    """Holds the calls of a real engine until the test lets them go; see `own_thread`."""

    def __init__(self, server: ReplicaServer, monkeypatch: pytest.MonkeyPatch) -> None:
        assert server.replica.loaded is not None
        assert not server.replica.loaded.is_brief, "a held one must not hold the event loop"
        engine, self._loop = engine_of(server), asyncio.get_running_loop()
        self._plain_run = engine.run
        self.is_held = asyncio.Event()
        self.may_go = asyncio.Event()
        monkeypatch.setattr(engine, "run", self.run)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Tell the test, wait for it, compute."""
        self._loop.call_soon_threadsafe(self.is_held.set)
        asyncio.run_coroutine_threadsafe(self.may_go.wait(), self._loop).result(60)
        return self._plain_run(inputs)


async def test_reports_of_a_life_and_answers_on_both_ports(
    shelf: Shelf, controller: TestController, serving: Serving
) -> None:
    shelf.publish_model()
    engine = shelf.publish_engine()
    server = await serving()
    report = await until(controller, fleet.REPLICA_STATE_READY)
    assert controller.reports[0].state == fleet.REPLICA_STATE_LOADING
    assert (report.model_name, report.model_version) == ("toy", 1)
    assert (report.engine_digest, report.engine_kind) == (engine.digest, "onnxruntime")
    assert (report.engine_precision, report.fallback_reason) == ("fp32", "")
    assert report.engine_generation == shelf.device.generation
    assert json.loads(report.device_facts_json)["name"] == shelf.device.name
    assert [a.split(":")[0] for a in report.addresses] == ["unix", "127.0.0.1"]
    for number, address in enumerate(report.addresses):
        async with connected(address, report.data_token) as connection:
            ids = ids_of(2, 3 + number)
            assert_answers(await connection.infer(request_of(ids, "r1")), ids, "r1")
    await server.check_health()
    await server.stop()
    async with asyncio.timeout(30):
        await controller.detached()
    assert controller.reports[-1].state == fleet.REPLICA_STATE_DRAINING


async def test_an_output_without_room_in_shared_memory_counts_as_a_failure(
    shelf: Shelf, serving: Serving
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    asked = pb.ModelInferRequest.FromString(request_of(ids_of(2, 3)))
    room = asked.outputs.add(name="pooled").parameters["shared_memory_byte_size"]
    async with connected(server.addresses[0], server.token) as connection:
        room.int64_param = 2 * WIDTH * 4
        await connection.infer(asked.SerializeToString())
        room.int64_param -= 1
        with pytest.raises(InvalidRequestError, match="for output 'pooled' .* at least"):
            await connection.infer(asked.SerializeToString())
        stats = (await connection.statistics()).inference_stats
    assert (stats.success.count, stats.fail.count) == (1, 1)


async def test_an_index_outside_of_a_table_is_the_callers_fault_with_the_engines_words(
    tmp_path: Path, serving: Serving
) -> None:
    """Where the recipe gives no limit, the engine alone knows it; companions are answered."""
    inputs = {"mask": RECIPE.inputs["mask"]}
    shelf = Shelf(tmp_path, RECIPE.model_copy(update={"inputs": inputs}))
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    async with connected(server.addresses[0], server.token) as connection:
        good = ids_of(1, 2)
        asked = [request_of(ids) for ids in (good, np.full((1, 2), NUM_ROWS), good)]
        answers = await asyncio.gather(*map(connection.infer, asked), return_exceptions=True)
        for answer in (answers[0], answers[2]):
            assert isinstance(answer, bytes | memoryview)
            assert_answers(answer, good)
        assert isinstance(answers[1], InputRefusedError)
        assert f"idx={NUM_ROWS} must be within" in str(answers[1])


async def test_large_requests_keep_every_byte(shelf: Shelf, serving: Serving) -> None:
    # 8 x 16 is the largest bucket: more than one frame in flight, answered in any order.
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    async with connected(server.addresses[0], server.token) as connection:
        all_ids = [ids_of(8, 16, first) for first in range(40)]
        answers = await asyncio.gather(*(connection.infer(request_of(ids)) for ids in all_ids))
        for ids, answer in zip(all_ids, answers, strict=True):
            assert_answers(answer, ids)


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


async def test_a_port_on_all_interfaces_is_announced_under_an_address_to_dial(
    shelf: Shelf, settings: ReplicaSettings, controller: TestController
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    server = ReplicaServer(settings.model_copy(update={"host": "0.0.0.0"}), NullRecorder())
    await server.start()
    try:
        report = await until(controller, fleet.REPLICA_STATE_READY)
        assert not report.addresses[1].startswith("0.0.0.0")
        async with connected(report.addresses[1], report.data_token) as connection:
            ids = ids_of(1, 2)
            assert_answers(await connection.infer(request_of(ids)), ids)
    finally:
        await server.stop(grace_s=0)


async def test_a_host_that_is_named_is_announced_instead_of_all_interfaces(
    shelf: Shelf, settings: ReplicaSettings, controller: TestController
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    named = settings.model_copy(update={"host": "0.0.0.0", "announced_host": "some.host"})
    server = ReplicaServer(named, NullRecorder())
    await server.start()
    try:
        report = await until(controller, fleet.REPLICA_STATE_READY)
        assert report.addresses[1].startswith("some.host:")
    finally:
        await server.stop(grace_s=0)


async def test_wrong_requests_are_refused_over_the_wire(shelf: Shelf, serving: Serving) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    async with connected(server.addresses[0], server.token) as connection:
        with pytest.raises(InvalidRequestError, match="batch-size must be <= 8 for 'toy', got 9"):
            await connection.infer(request_of(ids_of(9, 1)))
        with pytest.raises(NotFoundError, match="'other' is not found"):
            await connection.infer(pb.ModelInferRequest(model_name="other").SerializeToString())
        ids = ids_of(1, 1)
        assert_answers(await connection.infer(request_of(ids)), ids)


async def test_an_engine_that_raises_fails_that_request_only(
    shelf: Shelf, serving: Serving
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    async with connected(server.addresses[0], server.token) as connection:
        outside = np.full((1, 2), NUM_ROWS, np.int64)
        with pytest.raises(EngineError, match="indices element out of data bounds"):
            await connection.infer(request_of(outside))
        ids = ids_of(2, 2)
        assert_answers(await connection.infer(request_of(ids)), ids)


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
async def test_the_drain_command_answers_what_was_accepted(
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
        await controller.send(fleet.ReplicaCommand(drain=fleet.Drain()))
        await until(controller, fleet.REPLICA_STATE_DRAINING)
        assert not server.drained.is_set()
        held.may_go.set()
        assert_answers(await accepted, ids_of(1, 2))
        async with asyncio.timeout(30):
            await server.drained.wait()
        with pytest.raises(NotReadyError):
            await connection.infer(request_of(ids_of(1, 2)))


async def test_the_replica_serves_on_without_its_controller_and_attaches_again(
    shelf: Shelf, controller: TestController, serving: Serving
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    await until(controller, fleet.REPLICA_STATE_READY)
    await controller.stop()
    async with connected(server.addresses[0], server.token) as connection:
        ids = ids_of(1, 2)
        assert_answers(await connection.infer(request_of(ids)), ids)
    heard = len(controller.reports)
    await controller.start()
    async with asyncio.timeout(60):
        again = await controller.report_where(lambda report: True, skip=heard)
    assert again.state == fleet.REPLICA_STATE_READY
    assert list(again.addresses) == server.addresses


async def test_a_dead_data_port_is_unhealthy_and_reported(
    shelf: Shelf, controller: TestController, serving: Serving
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    await server.check_health()
    await asyncio.to_thread(Path(server.addresses[0].removeprefix("unix:")).unlink)
    with pytest.raises(EngineError, match="data port .* does not answer"):
        await server.check_health()
    await until(controller, fleet.REPLICA_STATE_FAILED)


async def checked_without_end(server: ReplicaServer) -> NoReturn:
    """Ask until it raises: an engine that passed a proof rests nine times as long as that took."""
    async with asyncio.timeout(60):
        while True:
            await server.check_health()


async def test_requests_that_every_engine_fails_on_do_not_end_a_replica(
    shelf: Shelf, controller: TestController, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    server = await serving()
    outside = request_of(np.full((1, 2), NUM_ROWS, np.int64))
    for _ in range(MAX_FAILURES_IN_A_ROW):
        with pytest.raises(EngineError):
            await server.replica.infer(outside)
    await server.check_health()

    def broken(inputs: Mapping[str, Array]) -> dict[str, Array]:
        raise RuntimeError("context is broken")

    monkeypatch.setattr(engine_of(server), "run", broken)
    for _ in range(MAX_FAILURES_IN_A_ROW):
        with pytest.raises(EngineError):
            await server.replica.infer(request_of(ids_of(1, 1)))
    with pytest.raises(EngineError, match="known to be good: context is broken"):
        await checked_without_end(server)
    await until(controller, fleet.REPLICA_STATE_FAILED)


async def test_a_simulated_generation_still_serves_on_this_device(
    shelf: Shelf, controller: TestController, settings: ReplicaSettings
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    changes = {"generation_override": "cuda-sm90", "controller_address": controller.address}
    server = ReplicaServer(settings.model_copy(update=changes), NullRecorder())
    await server.start()
    try:
        report = await until(controller, fleet.REPLICA_STATE_READY)
        assert report.engine_kind == "fallback"
        assert report.fallback_reason == "no_engine_for_generation"
        assert report.engine_generation == "cuda-sm90"
        ids = ids_of(2, 3)
        assert_answers(await server.replica.infer(request_of(ids)), ids)
    finally:
        await server.stop(grace_s=0)


async def test_an_unknown_model_does_not_start(
    shelf: Shelf, settings: ReplicaSettings, serving: Serving
) -> None:
    with pytest.raises(NotFoundError, match="model 'toy' not found"):
        await serving()
