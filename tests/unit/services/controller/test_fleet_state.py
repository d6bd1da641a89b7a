"""The controller's memory: revisions, watchers, replicas that come and go."""

import asyncio
from contextlib import aclosing

from services.controller.fleet_state import FleetState
from services.pb import fleet_v1_pb2 as fleet


def _report(replica_id: str = "r1", **fields: object) -> fleet.ReplicaReport:
    values = {"model_name": "m", "model_version": 1, "state": fleet.REPLICA_STATE_READY} | fields
    return fleet.ReplicaReport(replica_id=replica_id, **values)  # type: ignore[arg-type]


def _model(version: int = 1, state: str = "READY") -> fleet.ServedModel:
    return fleet.ServedModel(name="m", version=version, state=state)


def test_each_change_makes_one_revision_and_equal_values_make_none() -> None:
    state = FleetState("store", 1)
    state.set_model(_model())
    state.set_model(_model())
    assert state.revision == 1
    replica = state.attach(_report())
    state.update(replica, _report())
    assert state.revision == 2
    state.update(replica, _report(state=fleet.REPLICA_STATE_DRAINING))
    assert state.revision == 3
    assert state.num_ready("m", 1, "") == 0


def test_a_replica_that_attached_anew_outlives_its_old_stream() -> None:
    state = FleetState("store", 1)
    old = state.attach(_report())
    state.attach(_report())
    state.detach(old)
    assert [r.replica_id for r in state.snapshot().replicas] == ["r1"]


def test_engines_are_announced_to_the_replicas_of_that_version_only() -> None:
    state = FleetState("store", 1)
    mine = state.attach(_report("a"))
    other = state.attach(_report("b", model_version=2))
    for replica in (mine, other):
        replica.commands.get_nowait()
    assert state.announce_engines("m", 1, "d") == 1
    assert mine.commands.get_nowait().engines_changed.master_digest == "d"
    assert other.commands.empty()


def test_a_replica_that_attaches_is_told_to_look() -> None:
    state = FleetState("store", 1)
    replica = state.attach(_report())
    assert replica.commands.get_nowait().HasField("engines_changed")
    assert replica.commands.empty()


async def test_a_watcher_sees_the_state_at_once_and_after_each_change() -> None:
    state = FleetState("store", 1)
    async with aclosing(state.watch()) as watch:
        assert (await anext(watch)).revision == 0
        pending = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        assert not pending.done()
        state.set_model(_model())
        state.remove_model("m", 1)
        # A slow watcher gets the newest state, not each one in between.
        snapshot = await pending
    assert snapshot.revision == 2
    assert not snapshot.models


async def test_no_change_is_lost_between_two_snapshots() -> None:
    state = FleetState("store", 1)
    async with aclosing(state.watch()) as watch:
        await anext(watch)
        state.set_model(_model())
        assert (await asyncio.wait_for(anext(watch), 5)).revision == 1
