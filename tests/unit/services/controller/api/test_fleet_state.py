"""The controller's memory: revisions, watchers, replicas that come and go."""

import asyncio
from contextlib import aclosing

import pytest

from services.controller.api.fleet_state import FleetState
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


def test_each_controller_process_has_a_life_of_its_own() -> None:
    first, second = FleetState("store").snapshot(), FleetState("store").snapshot()
    assert 0 not in (first.epoch, second.epoch)
    assert first.epoch != second.epoch


def _listed(state: FleetState) -> tuple[list[str], list[str]]:
    snapshot = state.snapshot()
    return (
        [replica.replica_id for replica in snapshot.replicas],
        [replica.replica_id for replica in snapshot.unseen],
    )


def test_a_ready_replica_whose_line_broke_is_unseen_until_it_is_forgotten() -> None:
    state = FleetState("store", 1)
    lost = state.attach(_report())
    state.detach(lost)
    assert _listed(state) == ([], ["r1"])
    # It is no replica to count on, but its version is still there.
    assert state.num_ready("m", 1, "") == 0
    assert state.ready_keys() == [("m", 1, "")]
    state.forget(lost)
    assert _listed(state) == ([], [])
    assert state.ready_keys() == []


def test_a_replica_that_attached_again_is_seen_and_stays() -> None:
    state = FleetState("store", 1)
    lost = state.attach(_report())
    state.detach(lost)
    again = state.attach(_report())
    assert _listed(state) == (["r1"], [])
    state.forget(lost)
    assert _listed(state) == (["r1"], [])
    # Lost a second time, it has the whole of its grace again.
    state.detach(again)
    state.forget(lost)
    assert _listed(state) == ([], ["r1"])


@pytest.mark.parametrize(
    "goodbye",
    [fleet.REPLICA_STATE_LOADING, fleet.REPLICA_STATE_DRAINING, fleet.REPLICA_STATE_FAILED],
)
def test_a_replica_that_takes_no_requests_leaves_at_once(goodbye: int) -> None:
    state = FleetState("store", 1)
    replica = state.attach(_report())
    state.update(replica, _report(state=goodbye))
    state.detach(replica)
    assert _listed(state) == ([], [])


async def test_the_first_look_that_goes_well_is_the_last_that_counts() -> None:
    state = FleetState("store", 1)
    looked = asyncio.ensure_future(state.looked())
    await asyncio.sleep(0)
    assert not looked.done()
    state.note_look("store is away")
    assert await looked == "store is away"
    state.note_look()
    assert await state.looked() == ""
    state.note_look("store is away again")
    assert await state.looked() == ""


def test_engines_are_announced_to_the_replicas_of_that_version_only() -> None:
    state = FleetState("store", 1)
    mine = state.attach(_report("a"))
    other = state.attach(_report("b", model_version=2))
    assert state.set_engines("m", 1, "d", ["engines/d/1"]) == 1
    announced = mine.commands.get_nowait().engines_changed
    assert (announced.master_digest, announced.document_keys) == ("d", ["engines/d/1"])
    assert other.commands.empty()
    assert state.set_engines("m", 1, "d", ["engines/d/1"]) == 0


def test_a_replica_that_attaches_gets_what_is_known_of_its_engines() -> None:
    state = FleetState("store", 1)
    early = state.attach(_report("early"))
    assert early.commands.empty()
    state.set_engines("m", 1, "d", ["engines/d/1"])
    late = state.attach(_report("late"))
    for replica in (early, late):
        assert replica.commands.get_nowait().engines_changed.document_keys == ["engines/d/1"]
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
        assert (await asyncio.wait_for(anext(watch), 60)).revision == 1


def test_a_pass_that_failed_is_said_until_one_goes_well() -> None:
    state = FleetState("store")
    state.note_look()
    revision = state.revision
    state.note_look("Ray did not answer within 30 s")
    assert state.snapshot().fault == "Ray did not answer within 30 s"
    assert state.revision == revision + 1
    state.note_look("Ray did not answer within 30 s")
    assert state.revision == revision + 1
    state.note_look()
    assert state.snapshot().fault == ""


def _shown(state: FleetState) -> tuple[str, str]:
    (model,) = state.snapshot().models
    return model.state, model.reason


def test_a_version_of_which_no_replica_is_ready_is_loading_and_says_why() -> None:
    """Ray Serve calls an application running that has replicas, whatever becomes of them."""
    state = FleetState("store", 1)
    state.set_model(_model())
    assert _shown(state) == ("LOADING", "replicas are starting")
    first, second = state.attach(_report()), state.attach(_report("r2"))
    assert _shown(state) == ("READY", "")
    state.detach(first)
    assert _shown(state) == ("READY", "")
    state.detach(second)
    assert _shown(state) == ("LOADING", "2 replicas lost")
    state.attach(_report("r3", state=fleet.REPLICA_STATE_LOADING))
    state.forget(first)
    assert _shown(state) == ("LOADING", "1 replica lost, 1 replica loading")
    state.attach(_report("r4"))
    assert _shown(state) == ("READY", "")


def test_other_states_are_shown_as_they_are() -> None:
    state = FleetState("store", 1)
    state.set_model(_model(state="UNAVAILABLE"))
    assert _shown(state) == ("UNAVAILABLE", "")
    unloaded = _model()
    unloaded.is_unloaded, unloaded.reason = True, "unloaded"
    state.set_model(unloaded)
    assert _shown(state) == ("READY", "unloaded")
