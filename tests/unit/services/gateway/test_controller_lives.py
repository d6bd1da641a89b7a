"""What a gateway keeps of a former controller, and for how long."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from services.contracts.manifest import ModelVersion
from services.gateway.controller_lives import ControllerLives
from services.gateway.fleet_view import FleetView, Replica

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
    """What a controller process says when these replicas are attached to it."""

    def make(process_id: int, *replicas: str) -> FleetView:
        by_name = {name: new_replica(name, addresses=(str(process_id),)) for name in replicas}
        return replace(new_view(new_model()), process_id=process_id, replicas=by_name)

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


def test_models_are_kept_until_the_new_life_names_some(said: Said) -> None:
    lives = ControllerLives(30.0, _Clock())
    lives.hear(said(1, "a"))
    lives.hear(FleetView(is_known=True, process_id=2))
    assert set(lives.completed().models) == {"minilm"}


def test_a_second_restart_within_the_grace_keeps_the_same_replicas(said: Said) -> None:
    clock = _Clock()
    lives = ControllerLives(30.0, clock)
    lives.hear(said(1, "a"))
    lives.hear(said(2, "b"))
    clock.now_s += 20.0
    lives.hear(said(3))
    clock.now_s += 20.0
    assert set(lives.completed().replicas) == {"a", "b"}
