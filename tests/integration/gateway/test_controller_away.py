"""The last known fleet, while a controller is away, restarts or has lost a replica."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.gateway.answers import Inputs, who

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


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
    snapshot.epoch, snapshot.store_url = 2, "new process"
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
    assert who(await (await echo_fleet.client()).infer("echo", inputs())) == "r1"
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
    # Once it is given up, no process answers there.
    monkeypatch.setattr(echo_fleet.replicas["r1"].server, "token", b"s" * 32)
    await echo_fleet.until_ready("r2")
