"""Which address of a replica is connected to, and what is kept of a connection that is closed."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from services.pb import fleet_v1_pb2 as fleet
from services.replica.transport.data_server import GatewayConnection
from tests.integration.gateway.answers import Inputs, who

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


async def test_another_process_at_a_dead_replicas_address_is_never_asked(
    echo_fleet: "Fleet", inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may well serve a model of that name; it is not the replica that reported."""
    stranger = echo_fleet.replicas["r2"]
    stranger.die()
    await echo_fleet.until(lambda: echo_fleet.routed() == {"r1"})
    refused, refuse = asyncio.Event(), GatewayConnection.refuse
    monkeypatch.setattr(
        GatewayConnection, "refuse", lambda *arguments: (refuse(*arguments), refused.set())
    )
    await stranger.come_back(echo_fleet.report_of("r2").addresses[0], token=b"s" * 32)
    await asyncio.wait_for(refused.wait(), 30)
    client = await echo_fleet.client()
    assert {who(await client.infer("echo", inputs())) for _ in range(8)} == {"r1"}
    assert echo_fleet.routed() == {"r1"}


async def test_a_replica_of_another_host_is_reached_by_tcp(
    fleet_of: "Fleet", inputs: Inputs, new_model: Callable[..., Any]
) -> None:
    fleet_of.add_model(new_model())
    await fleet_of.add_replica("r1", host_id="elsewhere")
    fleet_of.report_of("r1").addresses[0] = "unix:/a/socket/of/another/host"
    await fleet_of.until_ready("r1")
    assert who(await (await fleet_of.client()).infer("echo", inputs())) == "r1"


async def test_tcp_is_tried_when_the_socket_is_not_there(
    fleet_of: "Fleet", inputs: Inputs, new_model: Callable[..., Any]
) -> None:
    fleet_of.add_model(new_model())
    await fleet_of.add_replica("r1")
    fleet_of.report_of("r1").addresses[0] = "unix:/not/there"
    await fleet_of.until_ready("r1")
    assert who(await (await fleet_of.client()).infer("echo", inputs())) == "r1"


async def test_a_replica_that_moves_is_connected_anew(echo_fleet: "Fleet", inputs: Inputs) -> None:
    moved = await echo_fleet.add_replica("r9")
    addresses = list(echo_fleet.report_of("r9").addresses)
    del echo_fleet.controller.snapshot.replicas[-1]
    del echo_fleet.report_of("r1").addresses[:]
    echo_fleet.report_of("r1").addresses.extend(addresses)
    echo_fleet.report_of("r2").state = fleet.REPLICA_STATE_LOADING
    await echo_fleet.until_ready("r1")
    await (await echo_fleet.client()).infer("echo", inputs())
    assert moved.num_requests == 1


@pytest.mark.parametrize("dies_first", [True, False])
async def test_nothing_is_kept_of_a_connection_to_a_replica_that_is_gone(
    echo_fleet: "Fleet", inputs: Inputs, *, dies_first: bool
) -> None:
    """Its buffers are a quarter of a megabyte, and a gateway collects garbage late."""
    client = await echo_fleet.client()
    for _ in range(8):
        await client.infer("echo", inputs())
    gone = asyncio.Event()
    gc.disable()
    try:
        endpoint = echo_fleet.endpoints()["r1"]
        weakref.finalize(endpoint.connection, gone.set)
        del endpoint
        if dies_first:
            echo_fleet.replicas["r1"].die()
            await echo_fleet.until(lambda: echo_fleet.routed() == {"r2"})
        echo_fleet.controller.snapshot.replicas.remove(echo_fleet.report_of("r1"))
        await echo_fleet.until_ready("r2")
        await client.infer("echo", inputs())  # the last table is known until the next request
        async with asyncio.timeout(30):
            await gone.wait()
    finally:
        gc.enable()
