"""What a gateway keeps of a former controller, and for how long."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from services.contracts.external.external_model import ExternalModel
from services.contracts.model.manifest import ModelVersion
from services.controller.api.fleet_state import FleetState
from services.gateway.routing.controller_epochs import ControllerEpochs
from services.gateway.routing.fleet_view import (
    DiscoveredFleet,
    ReplicaInfo,
    fleet_view_from_snapshot,
)
from services.pb import fleet_v1_pb2 as fleet

NewReplica = Callable[..., ReplicaInfo]


@dataclass
class _Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def said(
    new_view: Callable[..., DiscoveredFleet],
    new_model: Callable[..., ModelVersion],
    new_replica: NewReplica,
) -> Callable[..., DiscoveredFleet]:
    """What a controller says in one epoch when these replicas are attached to it."""

    def make(epoch: int, *replicas: str) -> DiscoveredFleet:
        by_name = {name: new_replica(name, addresses=(str(epoch),)) for name in replicas}
        return replace(new_view(new_model()), epoch=epoch, replicas=by_name)

    return make


Said = Callable[..., DiscoveredFleet]


def test_one_epoch_is_taken_at_its_word(said: Said) -> None:
    epochs = ControllerEpochs(30.0, _Clock())
    assert not epochs.completed().is_known
    epochs.update(said(1, "a", "b"))
    epochs.update(said(1, "b"))
    assert epochs.completed() == said(1, "b")
    assert epochs.grace_left_s == 0.0


def test_replicas_of_the_former_epoch_are_kept_for_the_grace(said: Said) -> None:
    clock = _Clock()
    epochs = ControllerEpochs(30.0, clock)
    epochs.update(said(1, "a", "b"))
    epochs.update(said(2))
    assert epochs.completed().replicas == said(1, "a", "b").replicas
    assert epochs.grace_left_s == 30.0
    clock.now_s += 29.0
    assert set(epochs.completed().replicas) == {"a", "b"}
    clock.now_s += 1.0
    assert epochs.completed() == said(2)


def test_an_external_model_is_kept_until_the_next_controller_has_checked_it() -> None:
    model = ExternalModel(name="chat", version=1, url="openai+http://h/v1", remote_name="m")

    def shown(epoch: int, state: str) -> DiscoveredFleet:
        entry = fleet.ServedModel(
            name="chat", version=1, state=state, external_json=model.canonical_json()
        )
        return fleet_view_from_snapshot(fleet.FleetSnapshot(epoch=epoch, models=[entry]))

    epochs = ControllerEpochs(30.0, _Clock())
    epochs.update(shown(1, "READY"))
    epochs.update(shown(2, "LOADING"))
    assert set(epochs.completed().replicas) == {"external chat/1"}
    epochs.update(shown(2, "READY"))
    epochs.update(shown(2, "UNAVAILABLE"))
    assert not epochs.completed().replicas


def test_what_the_new_epoch_mentions_is_its_own(said: Said) -> None:
    epochs = ControllerEpochs(30.0, _Clock())
    epochs.update(said(1, "a", "b"))
    epochs.update(said(2, "a"))
    assert epochs.completed().replicas["a"].addresses == ("2",)
    assert epochs.completed().replicas["b"].addresses == ("1",)
    epochs.update(said(2))
    assert set(epochs.completed().replicas) == {"b"}


def test_a_process_id_of_the_next_epoch_says_nothing(said: Said) -> None:
    """In a container each controller is process 1: the epoch is what differs."""
    epochs = ControllerEpochs(30.0, _Clock())
    snapshots = [FleetState("store").snapshot() for _ in range(2)]
    snapshots[0].replicas.add(replica_id="a", state=fleet.REPLICA_STATE_READY)
    for snapshot in snapshots:
        epochs.update(fleet_view_from_snapshot(snapshot))
    assert set(epochs.completed().replicas) == {"a"}


def test_models_are_kept_until_the_new_epoch_names_some(said: Said) -> None:
    epochs = ControllerEpochs(30.0, _Clock())
    epochs.update(said(1, "a"))
    epochs.update(DiscoveredFleet(is_known=True, epoch=2))
    assert set(epochs.completed().models) == {"minilm"}


def test_a_version_that_a_replica_serves_is_known_until_the_grace_is_over(said: Said) -> None:
    """A controller that places no replicas knows older versions once these attached."""
    clock = _Clock()
    epochs = ControllerEpochs(30.0, clock)
    former, newest = said(1, "a"), said(2)
    epochs.update(former)
    (serves,) = former.models["minilm"].values()
    newest = replace(newest, models={"minilm": {7: serves}})
    for word in (newest, replace(newest, replicas=former.replicas)):
        epochs.update(word)
        assert set(epochs.completed().models["minilm"]) == {1, 7}
    epochs.update(newest)
    assert set(epochs.completed().models["minilm"]) == {7}
    epochs.update(replace(newest, models={"other": {1: serves}}, replicas=former.replicas))
    assert set(epochs.completed().models) == {"other"}
    epochs.update(replace(newest, replicas=former.replicas))
    clock.now_s += 30.0
    assert set(epochs.completed().models["minilm"]) == {7}


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_second_restart_within_the_grace_keeps_the_versions_that_are_served(
    said: Said, *, is_listed: bool
) -> None:
    clock = _Clock()
    epochs = ControllerEpochs(30.0, clock)
    former = said(1, "a")
    (serves,) = former.models["minilm"].values()
    models = {"minilm": {7: serves}}
    epochs.update(former)
    for epoch in (2, 3, 4):
        clock.now_s += 20.0
        # One that ends at once may have listed nothing yet.
        listed = models if is_listed or epoch == 4 else {}
        epochs.update(replace(said(epoch), models=listed))
        assert 1 in epochs.completed().models["minilm"]
    assert set(epochs.completed().models["minilm"]) == {1, 7}
    clock.now_s += 30.0
    assert epochs.completed() == replace(said(4), models=models)


def test_what_was_to_be_forgotten_is_not_kept_by_a_later_restart(said: Said) -> None:
    clock = _Clock()
    epochs = ControllerEpochs(30.0, clock)
    epochs.update(said(1, "a"))
    epochs.update(said(2, "b"))
    clock.now_s += 30.0
    epochs.update(said(3))
    assert set(epochs.completed().replicas) == {"b"}


def test_a_second_restart_within_the_grace_keeps_the_same_replicas(said: Said) -> None:
    clock = _Clock()
    epochs = ControllerEpochs(30.0, clock)
    epochs.update(said(1, "a"))
    epochs.update(said(2, "b"))
    clock.now_s += 20.0
    epochs.update(said(3))
    clock.now_s += 20.0
    assert set(epochs.completed().replicas) == {"a", "b"}
