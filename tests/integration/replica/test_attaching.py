"""A replica and its controller: the address it announces, the generation it reports, its start."""

import asyncio

import pytest

from services.contracts.errors import (
    NotFoundError,
)
from services.pb import fleet_v1_pb2 as fleet
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.recorder import NullRecorder

from .conftest import Serving, connected, until
from .controller import TestController
from .published import Shelf, assert_answers, ids_of, request_of


async def test_a_port_on_all_interfaces_is_announced_under_an_address_to_dial(
    shelf: Shelf, settings: ReplicaSettings, controller: TestController
) -> None:
    shelf.publish_model()
    shelf.publish_engine()
    named = settings.model_copy(update={"host": "0.0.0.0", "announced_host": "127.0.0.1"})
    server = ReplicaServer(named, NullRecorder())
    await server.start()
    try:
        report = await until(controller, fleet.REPLICA_STATE_READY)
        assert report.addresses[1].startswith("127.0.0.1:")
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


@pytest.mark.usefixtures("forked_children")
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
