"""A replica's answers over the wire: real store, real engine, real sockets, real control line."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from services.contracts.errors import (
    EngineError,
    InputRefusedError,
    InvalidRequestError,
    NotFoundError,
)
from services.pb import fleet_v1_pb2 as fleet
from services.pb import open_inference_v2_pb2 as pb

from .conftest import Serving, connected, until
from .controller import TestController
from .published import NUM_ROWS, RECIPE, WIDTH, Shelf, assert_answers, ids_of, request_of


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
