"""What is lost, and what clients notice of it."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tritonclient.utils import InferenceServerException

from services.contracts.errors import NotReadyError
from services.contracts.transport.frames import InferFrame
from services.pb import fleet_v1_pb2 as fleet
from services.replica.transport.data_server import GatewayConnection

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

Inputs = Callable[..., list[Any]]


def _who(result: Any) -> str:
    return str(result.get_response().parameters["replica"].string_param)


async def test_a_request_on_a_dying_replica_is_answered_by_another(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    first = echo_fleet.replicas["r1"]
    second = echo_fleet.replicas["r2"]

    async def die(frame: InferFrame) -> bytes:
        first.die()
        return b""

    first.answer = die
    client = await echo_fleet.client()
    results = await asyncio.gather(*(client.infer("echo", inputs()) for _ in range(20)))
    assert {_who(result) for result in results} == {"r2"}
    assert first.num_requests > 0
    assert second.num_requests == 20
    assert echo_fleet.routed() == {"r2"}
    retries = echo_fleet.metric("smelt_request_retries_total", model="echo", version="1")
    assert retries is not None
    assert retries >= first.num_requests
    ready = echo_fleet.metric(
        "smelt_replicas_ready", model="echo", version="1", generation="cpu-x86_64-v3"
    )
    assert ready == 1.0


async def test_the_last_replicas_death_is_unavailable_and_it_may_come_back(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    for replica in echo_fleet.replicas.values():

        async def die(frame: InferFrame, replica: Any = replica) -> bytes:
            replica.die()
            return b""

        replica.answer = die
    client = await echo_fleet.client()
    with pytest.raises(InferenceServerException, match="two replicas in a row were lost") as caught:
        await client.infer("echo", inputs())
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    with pytest.raises(InferenceServerException, match="has no ready replica") as caught:
        await client.infer("echo", inputs())
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    # The controller lists them still: the gateway connects again as soon as it can.
    revived = echo_fleet.replicas["r1"]
    revived.answer = None
    await revived.come_back(echo_fleet.report_of("r1").addresses[0])
    await echo_fleet.until(lambda: echo_fleet.routed() == {"r1"})
    assert _who(await client.infer("echo", inputs())) == "r1"


async def test_a_request_that_kills_its_replica_takes_no_third_one(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    await echo_fleet.add_replica("r3")
    await echo_fleet.until_ready("r1", "r2", "r3")
    died: list[str] = []
    for replica in echo_fleet.replicas.values():

        async def die(frame: InferFrame, replica: Any = replica) -> bytes:
            died.append(replica.name)
            replica.die()
            return b""

        replica.answer = die
    client = await echo_fleet.client()
    with pytest.raises(InferenceServerException, match="sent to no other") as caught:
        await client.infer("echo", inputs())
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    (left,) = {"r1", "r2", "r3"} - set(died)
    assert echo_fleet.routed() == {left}
    echo_fleet.replicas[left].answer = None
    assert _who(await client.infer("echo", inputs())) == left


async def test_a_request_that_no_replica_ran_goes_on_to_a_third(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    await echo_fleet.add_replica("r3")
    await echo_fleet.until_ready("r1", "r2", "r3")
    asked: list[str] = []
    for replica in echo_fleet.replicas.values():

        async def drain(frame: InferFrame, replica: Any = replica) -> bytes:
            asked.append(replica.name)
            if len(asked) == 3:
                return await replica.echo(frame)
            raise NotReadyError("draining")

        replica.answer = drain
    assert _who(await (await echo_fleet.client()).infer("echo", inputs())) == asked[-1]
    assert set(asked) == {"r1", "r2", "r3"}


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
    assert {_who(await client.infer("echo", inputs())) for _ in range(8)} == {"r1"}
    assert echo_fleet.routed() == {"r1"}


async def test_a_replica_that_stands_still_is_given_up(
    fleet_of: "Fleet",
    inputs: Inputs,
    new_model: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection stays open, but nothing comes: requests on it go elsewhere."""
    monkeypatch.setattr("services.gateway.upstream.holder.PING_EVERY_S", 0.05)
    monkeypatch.setattr("services.gateway.upstream.holder.PING_TIMEOUT_S", 3.0)
    fleet_of.add_model(new_model())
    frozen = await fleet_of.add_replica("r1")
    await fleet_of.until_ready("r1")
    arrived = asyncio.Event()

    async def hang(frame: InferFrame) -> bytes:
        if frozen.num_requests == 4:
            arrived.set()
        await asyncio.Event().wait()
        return b""

    frozen.answer = hang
    client = await fleet_of.client()
    stuck = [asyncio.ensure_future(client.infer("echo", inputs())) for _ in range(4)]
    await asyncio.wait_for(arrived.wait(), 30)
    await fleet_of.add_replica("r2")
    await fleet_of.until_ready("r1", "r2")
    for connection in frozen.server.connections:
        monkeypatch.setattr(connection, "send", lambda *frame: None)
    async with asyncio.timeout(30):
        results = await asyncio.gather(*stuck)
    assert [_who(result) for result in results] == ["r2"] * 4


async def test_a_draining_replica_gets_no_more_and_finishes_what_it_has(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    started, finish = asyncio.Event(), asyncio.Event()
    leaving = echo_fleet.replicas["r1"]

    async def slow(frame: InferFrame) -> bytes:
        started.set()
        await finish.wait()
        return await leaving.echo(frame)

    leaving.answer = slow
    client = await echo_fleet.client()
    out = []
    async with asyncio.timeout(30):
        while not started.is_set():
            out.append(asyncio.ensure_future(client.infer("echo", inputs())))
            one_of = (out[-1], asyncio.ensure_future(started.wait()))
            await asyncio.wait(one_of, return_when=asyncio.FIRST_COMPLETED)
            one_of[1].cancel()
    echo_fleet.report_of("r1").state = fleet.REPLICA_STATE_DRAINING
    await echo_fleet.until_ready("r2")
    later = [await client.infer("echo", inputs()) for _ in range(5)]
    assert {_who(result) for result in later} == {"r2"}
    finish.set()
    assert "r1" in {_who(result) for result in await asyncio.gather(*out)}
    # The connection was kept for that answer alone.
    async with asyncio.timeout(30):
        while leaving.server.connections:
            await asyncio.wait([c.gone for c in leaving.server.connections])


async def test_the_last_known_fleet_stays_while_the_controller_is_away(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    client = await echo_fleet.client()
    await echo_fleet.controller.stop()
    assert await client.infer("echo", inputs())
    await echo_fleet.add_replica("r3")
    await echo_fleet.controller.start()
    await echo_fleet.until(lambda: echo_fleet.routed() == {"r1", "r2", "r3"})
    assert await client.infer("echo", inputs())


async def test_replicas_of_a_restarted_controller_are_kept_until_they_attach_again(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    """A new controller knows no replica at first; those that answer us are alive all the same."""
    client = await echo_fleet.client()
    await echo_fleet.controller.stop()
    snapshot = echo_fleet.controller.snapshot
    reports = list(snapshot.replicas)
    del snapshot.replicas[:]
    snapshot.life_id, snapshot.store_url = 2, "new life"
    await echo_fleet.controller.start()
    await echo_fleet.until(lambda: echo_fleet.gateway.endpoints.table.view.epoch == 2)
    assert echo_fleet.routed() == {"r1", "r2"}
    assert await client.infer("echo", inputs())
    # One attaches again and is then withdrawn: that word counts.
    reports[0].engine_digest = "attached again"
    snapshot.replicas.append(reports[0])
    echo_fleet.controller.publish()
    view_of = echo_fleet.gateway.endpoints
    await echo_fleet.until(
        lambda: view_of.table.view.replicas["r1"].engine.digest == "attached again"
    )
    del snapshot.replicas[:]
    await echo_fleet.until_ready("r2")
    echo_fleet.replicas["r2"].die()
    await echo_fleet.until(lambda: echo_fleet.routed() == set())


async def test_a_replica_that_the_controller_lost_sight_of_is_kept(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    """A cut between those two takes nothing from clients; a dead replica is let go."""
    client = await echo_fleet.client()
    snapshot, endpoints = echo_fleet.controller.snapshot, echo_fleet.gateway.endpoints
    kept = echo_fleet.endpoints()
    snapshot.unseen.extend(snapshot.replicas)
    del snapshot.replicas[:]
    echo_fleet.controller.publish()
    await echo_fleet.until(lambda: endpoints.table.view.replicas["r1"].is_stale)
    assert echo_fleet.routed() == {"r1", "r2"}
    assert await client.infer("echo", inputs())
    # One attaches again and has its connection still, the other one dies.
    snapshot.replicas.append(snapshot.unseen.pop(0))
    echo_fleet.replicas["r2"].die()
    await echo_fleet.until_ready("r1")
    await echo_fleet.until(lambda: not endpoints.table.view.replicas["r1"].is_stale)
    assert echo_fleet.endpoints()["r1"] is kept["r1"]
    assert await client.infer("echo", inputs())


async def test_a_replica_that_is_unseen_is_connected_to_anew_until_it_is_forgotten(
    echo_fleet: "Fleet",
    inputs: Inputs,
    new_model: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What cut it from the controller may cut it from here too; one that answers serves."""
    snapshot, server = echo_fleet.controller.snapshot, echo_fleet.replicas["r1"].server
    snapshot.unseen.append(echo_fleet.report_of("r1"))
    del snapshot.replicas[:]
    await echo_fleet.until_ready("r1")
    with monkeypatch.context() as cut:
        cut.setattr(server, "token", b"s" * 32)
        for connection in list(server.connections):
            connection.abort()
        await echo_fleet.until(lambda: echo_fleet.routed() == set())
        # The controller speaks of something else meanwhile.
        echo_fleet.add_model(new_model("other"))
        echo_fleet.controller.publish()
        endpoints = echo_fleet.gateway.endpoints
        await echo_fleet.until(lambda: "other" in endpoints.table.view.models)
        assert echo_fleet.routed() == set()
    await echo_fleet.until(lambda: echo_fleet.routed() == {"r1"})
    assert _who(await (await echo_fleet.client()).infer("echo", inputs())) == "r1"
    del snapshot.unseen[:]
    await echo_fleet.until_ready()


async def test_a_replica_that_is_unseen_is_not_connected_to_and_then_forgotten(
    echo_fleet: "Fleet",
) -> None:
    await echo_fleet.add_replica("r3")
    snapshot = echo_fleet.controller.snapshot
    reports = {report.replica_id: report for report in snapshot.replicas}
    snapshot.unseen.extend([reports["r1"], reports["r3"]])
    for name in ("r1", "r3"):
        snapshot.replicas.remove(reports[name])
    echo_fleet.controller.publish()
    endpoints = echo_fleet.gateway.endpoints
    await echo_fleet.until(lambda: "r3" in endpoints.table.view.replicas)
    # A connection that was begun would be there before one that is begun later.
    await echo_fleet.add_replica("r4")
    await echo_fleet.until_ready("r1", "r2", "r4")
    assert not echo_fleet.replicas["r3"].server.connections
    # Its grace is over, or it was gone for good: the controller mentions it no more.
    del snapshot.unseen[:]
    await echo_fleet.until_ready("r2", "r4")


async def test_a_replica_that_stands_still_unseen_is_given_up_sooner(
    echo_fleet: "Fleet", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.upstream.holder.PING_EVERY_S", 0.05)
    monkeypatch.setattr("services.gateway.upstream.holder.UNSEEN_TIMEOUT_S", 0.2)
    for connection in echo_fleet.replicas["r1"].server.connections:
        monkeypatch.setattr(connection, "send", lambda *frame: None)
    snapshot = echo_fleet.controller.snapshot
    snapshot.unseen.append(echo_fleet.report_of("r1"))
    snapshot.replicas.remove(echo_fleet.report_of("r1"))
    # Once it is given up, nobody answers there.
    monkeypatch.setattr(echo_fleet.replicas["r1"].server, "token", b"s" * 32)
    await echo_fleet.until_ready("r2")


async def test_a_replica_of_another_host_is_reached_by_tcp(
    fleet_of: "Fleet", inputs: Inputs, new_model: Callable[..., Any]
) -> None:
    fleet_of.add_model(new_model())
    await fleet_of.add_replica("r1", host_id="elsewhere")
    fleet_of.report_of("r1").addresses[0] = "unix:/a/socket/of/another/host"
    await fleet_of.until_ready("r1")
    assert _who(await (await fleet_of.client()).infer("echo", inputs())) == "r1"


async def test_tcp_is_tried_when_the_socket_is_not_there(
    fleet_of: "Fleet", inputs: Inputs, new_model: Callable[..., Any]
) -> None:
    fleet_of.add_model(new_model())
    await fleet_of.add_replica("r1")
    fleet_of.report_of("r1").addresses[0] = "unix:/not/there"
    await fleet_of.until_ready("r1")
    assert _who(await (await fleet_of.client()).infer("echo", inputs())) == "r1"


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
