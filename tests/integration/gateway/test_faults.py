"""What is lost, and what clients notice of it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tritonclient.utils import InferenceServerException

from services.contracts.errors import NotReadyError
from services.contracts.transport.frames import InferFrame
from services.pb import fleet_v1_pb2 as fleet
from tests.integration.gateway.answers import Inputs, who

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


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
    assert {who(result) for result in results} == {"r2"}
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
    # What comes now is held. The controller lists both still: the gateway connects again as soon
    # as it can.
    held = asyncio.ensure_future(client.infer("echo", inputs()))
    await echo_fleet.until_metric(1.0, "smelt_requests_held", model="echo", version="1")
    revived = echo_fleet.replicas["r1"]
    revived.answer = None
    await revived.come_back(echo_fleet.report_of("r1").addresses[0])
    await echo_fleet.until(lambda: echo_fleet.routed() == {"r1"})
    assert who(await held) == "r1"


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
    assert who(await client.infer("echo", inputs())) == left


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
    assert who(await (await echo_fleet.client()).infer("echo", inputs())) == asked[-1]
    assert set(asked) == {"r1", "r2", "r3"}


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
    assert [who(result) for result in results] == ["r2"] * 4


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
    assert {who(result) for result in later} == {"r2"}
    finish.set()
    assert "r1" in {who(result) for result in await asyncio.gather(*out)}
    # The connection was kept for that answer alone.
    async with asyncio.timeout(30):
        while leaving.server.connections:
            await asyncio.wait([c.gone for c in leaving.server.connections])
