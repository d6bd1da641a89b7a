"""The controller's health: as long as its passes end."""

import socket
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.controller.__main__ import serve_health
from services.controller.api.health import MAX_SILENCE_S, ControllerHealth

STATES = health_pb2.HealthCheckResponse


class World:
    """Times that a test moves, and a real server."""

    now_s = last_sync_s = 1000.0

    async def check(self, service: str = "") -> int:
        """What a probe would hear."""
        request = health_pb2.HealthCheckRequest(service=service)
        async with grpc.aio.insecure_channel(self.address) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=30)
        return int(answer.status)

    address = ""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    server = grpc.aio.server()
    health = ControllerHealth(lambda: world.last_sync_s, clock=lambda: world.now_s)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    world.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield world
    await server.stop(None)


async def test_it_serves_while_passes_end(world: World) -> None:
    assert await world.check() == STATES.SERVING
    world.now_s += MAX_SILENCE_S
    assert await world.check() == STATES.SERVING
    world.now_s += 1
    assert await world.check() == STATES.NOT_SERVING
    world.last_sync_s = world.now_s
    assert await world.check() == STATES.SERVING


async def test_other_services_are_unknown(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.check("m")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_probes_have_a_port_of_their_own_where_one_is_named() -> None:
    health, world = ControllerHealth(lambda: 0.0, clock=lambda: 1.0), World()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        world.address = f"127.0.0.1:{free.getsockname()[1]}"
    server = await serve_health(world.address, health)
    assert await world.check() == STATES.SERVING
    await server.stop(None)
    # Named by nobody it listens nowhere, and stops as well.
    await (await serve_health("", health)).stop(None)
