"""The index over last events: it follows each change, and a change costs what it touches."""

import gc
import sys
from collections.abc import Callable

from services.contracts.events import Event, EventKind
from services.controller.events.event_state import EventState, LastEvents
from services.controller.events.serving_events import serving_events

HERE = "cuda-sm90"


def engine(model: str, key: str, kind: EventKind = EventKind.BUILD_FINISHED) -> Event:
    return Event(kind=kind, model=model, version=1, generation=HERE, key=key, mark="t")


def state_of(num_models: int) -> EventState:
    """Twenty engines of each model, one of which serves; the first model is unloaded."""
    state = EventState()
    state.apply(Event(kind=EventKind.GENERATION_APPEARED, generation=HERE, mark="a"))
    for model in map("m{}".format, range(num_models)):
        state.apply(Event(kind=EventKind.MODEL_PUBLISHED, model=model, version=1, key="d"))
        for number in range(20):
            state.apply(engine(model, f"{model}/{number}"))
        state.apply(engine(model, f"{model}/0", EventKind.ENGINE_SERVING))
    state.apply(Event(kind=EventKind.MODEL_UNLOADED, model="m0", version=1, mark="1"))
    return state


def num_calls(work: Callable[[], object]) -> int:
    """Calls of Python functions while this runs.

    The garbage collector calls functions of its own (hypothesis adds two to each collection).
    """
    found = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal found
        found += event == "call"

    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


def test_a_change_costs_what_it_touches() -> None:
    def cost(state: EventState) -> list[int]:
        weights = Event(kind=EventKind.WEIGHTS_CHANGED, model="m1", version=1, mark="1 1")
        lost = Event(kind=EventKind.REPLICA_LOST, model="m1", version=1, mark="r lost")
        return [
            num_calls(lambda: list(serving_events(state, [engine("m1", "new")]))),
            num_calls(lambda: state.apply(weights)),
            num_calls(lambda: state.apply(lost)),
            num_calls(state.classes),
        ]

    assert cost(state_of(100)) == cost(state_of(3))


def test_only_what_an_unloaded_model_served_ends() -> None:
    (ended,) = serving_events(state_of(3), [])
    assert (ended.kind, ended.model) == (EventKind.SERVING_ENDED, "m0")


def test_the_index_follows_a_subject_that_another_model_takes_over() -> None:
    """Two models of one master share engines."""
    last = LastEvents({"engine k": engine("a", "k"), "proof k": engine("a", "k")})
    last.put("engine k", engine("b", "k"))
    assert (list(last.of("engine", "a")), list(last.of("engine", "b"))) == ([], ["engine k"])
    assert list(last.of("engine")) == ["engine k"]
    last.remove("engine k")
    last.remove("engine k")
    assert (last.of("engine"), last.of("engine", "b")) == ({}, {})
    assert list(last.all()) == list(last.of("proof", "a")) == ["proof k"]
