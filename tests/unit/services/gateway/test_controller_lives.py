"""What a gateway keeps of a former controller, and for how long."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from services.contracts.manifest import ModelVersion
from services.controller.fleet_state import FleetState
from services.gateway.controller_lives import ControllerLives
from services.gateway.fleet_view import FleetView, Replica, fleet_view_from_snapshot
from services.pb import fleet_v1_pb2 as fleet

NewReplica = Callable[..., Replica]


@dataclass
class _Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def said(
    new_view: Callable[..., FleetView],
    new_model: Callable[..., ModelVersion],
    new_replica: NewReplica,
) -> Callable[..., FleetView]:
    """What a controller says in one life when these replicas are attached to it."""

    def make(life_id: int, *replicas: str) -> FleetView:
        by_name = {name: new_replica(name, addresses=(str(life_id),)) for name in replicas}
        return replace(new_view(new_model()), life_id=life_id, replicas=by_name)

    return make


Said = Callable[..., FleetView]


def test_one_life_is_taken_at_its_word(said: Said) -> None:
    lives = ControllerLives(30.0, _Clock())
    assert not lives.completed().is_known
    lives.hear(said(1, "a", "b"))
    lives.hear(said(1, "b"))
    assert lives.completed() == said(1, "b")
    assert lives.grace_left_s == 0.0


def test_replicas_of_the_former_life_are_kept_for_the_grace(said: Said) -> None:
    clock = _Clock()
    lives = ControllerLives(30.0, clock)
    lives.hear(said(1, "a", "b"))
    lives.hear(said(2))
    assert lives.completed().replicas == said(1, "a", "b").replicas
    assert lives.grace_left_s == 30.0
    clock.now_s += 29.0
    assert set(lives.completed().replicas) == {"a", "b"}
    clock.now_s += 1.0
    assert lives.completed() == said(2)


def test_what_the_new_life_mentions_is_its_own(said: Said) -> None:
    lives = ControllerLives(30.0, _Clock())
    lives.hear(said(1, "a", "b"))
    lives.hear(said(2, "a"))
    assert lives.completed().replicas["a"].addresses == ("2",)
    assert lives.completed().replicas["b"].addresses == ("1",)
    lives.hear(said(2))
    assert set(lives.completed().replicas) == {"b"}


def test_a_process_id_of_the_next_life_says_nothing(said: Said) -> None:
    """In a container each controller is process 1: the life is what differs."""
    lives = ControllerLives(30.0, _Clock())
    snapshots = [FleetState("store").snapshot() for _ in range(2)]
    snapshots[0].replicas.add(replica_id="a", state=fleet.REPLICA_STATE_READY)
    for snapshot in snapshots:
        lives.hear(fleet_view_from_snapshot(snapshot))
    assert set(lives.completed().replicas) == {"a"}


def test_models_are_kept_until_the_new_life_names_some(said: Said) -> None:
    lives = ControllerLives(30.0, _Clock())
    lives.hear(said(1, "a"))
    lives.hear(FleetView(is_known=True, life_id=2))
    assert set(lives.completed().models) == {"minilm"}


def test_a_version_that_a_replica_serves_is_known_until_the_grace_is_over(said: Said) -> None:
    """A controller that places no replicas knows older versions once these attached."""
    clock = _Clock()
    lives = ControllerLives(30.0, clock)
    former, newest = said(1, "a"), said(2)
    lives.hear(former)
    (serves,) = former.models["minilm"].values()
    newest = replace(newest, models={"minilm": {7: serves}})
    for word in (newest, replace(newest, replicas=former.replicas)):
        lives.hear(word)
        assert set(lives.completed().models["minilm"]) == {1, 7}
    lives.hear(newest)
    assert set(lives.completed().models["minilm"]) == {7}
    lives.hear(replace(newest, models={"other": {1: serves}}, replicas=former.replicas))
    assert set(lives.completed().models) == {"other"}
    lives.hear(replace(newest, replicas=former.replicas))
    clock.now_s += 30.0
    assert set(lives.completed().models["minilm"]) == {7}


@pytest.mark.parametrize("is_told", [True, False])
def test_a_second_restart_within_the_grace_keeps_the_versions_that_are_served(
    said: Said, *, is_told: bool
) -> None:
    clock = _Clock()
    lives = ControllerLives(30.0, clock)
    former = said(1, "a")
    (serves,) = former.models["minilm"].values()
    models = {"minilm": {7: serves}}
    lives.hear(former)
    for life_id in (2, 3, 4):
        clock.now_s += 20.0
        # One that ends at once may have told nothing yet.
        told = models if is_told or life_id == 4 else {}
        lives.hear(replace(said(life_id), models=told))
        assert 1 in lives.completed().models["minilm"]
    assert set(lives.completed().models["minilm"]) == {1, 7}
    clock.now_s += 30.0
    assert lives.completed() == replace(said(4), models=models)


def test_what_was_to_be_forgotten_is_not_kept_by_a_later_restart(said: Said) -> None:
    clock = _Clock()
    lives = ControllerLives(30.0, clock)
    lives.hear(said(1, "a"))
    lives.hear(said(2, "b"))
    clock.now_s += 30.0
    lives.hear(said(3))
    assert set(lives.completed().replicas) == {"b"}


def test_a_second_restart_within_the_grace_keeps_the_same_replicas(said: Said) -> None:
    clock = _Clock()
    lives = ControllerLives(30.0, clock)
    lives.hear(said(1, "a"))
    lives.hear(said(2, "b"))
    clock.now_s += 20.0
    lives.hear(said(3))
    clock.now_s += 20.0
    assert set(lives.completed().replicas) == {"a", "b"}
