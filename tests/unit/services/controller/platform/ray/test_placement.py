"""Why Ray places a replica nowhere, from Serve's words about a deployment."""

from typing import Any

from services.contracts.hardware.node_class import GENERATION_LABEL
from services.controller.platform.ray.placement import unplaced_words, waiting_replicas

GENERATION = "cuda-sm90"
# As Ray 2.60 words it.
SCHEDULED = (
    "Deployment 'replica' in application 'smelt:m:1:cuda-sm90' has 2 replicas that have taken more "
    "than 30s to be scheduled. This may be due to waiting for the cluster to auto-scale or for a "
    'runtime environment to be installed. Resources required for each replica: {"CPU": 0.1, '
    '"GPU": 1}, total resources available: {"CPU": 3.9}. Use `ray status` for more details.'
)


def node(name: str, generation: str = GENERATION, *, is_alive: bool = True) -> dict[str, Any]:
    return {
        "Alive": is_alive,
        "NodeID": f"id of {name}",
        "NodeManagerAddress": name,
        "Labels": {GENERATION_LABEL: generation},
        "Resources": {"CPU": 16.0, "GPU": 1.0, "memory": 1e9},
    }


def test_replicas_that_wait_for_a_node_are_told_from_those_that_load() -> None:
    assert waiting_replicas(SCHEDULED) == (2, '{"CPU": 0.1, "GPU": 1}')
    assert waiting_replicas(SCHEDULED.replace("to be scheduled", "to initialize")) is None
    assert waiting_replicas("") is None


def test_it_says_what_is_wanted_what_there_is_and_who_holds_it() -> None:
    nodes = [node("10.0.0.1"), node("10.0.0.2", is_alive=False), node("10.0.0.3", "cuda-sm80")]
    free = {"id of 10.0.0.1": {"CPU": 3.0}, "id of 10.0.0.3": {"GPU": 1.0}}
    words = unplaced_words(2, '{"GPU": 1}', GENERATION, nodes, free, [("other version 1", 1)])
    assert 'each wants {"GPU": 1} on a node of cuda-sm90' in words
    assert "10.0.0.1 has 1 GPU, 16 CPU, free: 3 CPU; replicas there: other version 1 (1)" in words
    assert "10.0.0.2" not in words
    assert "10.0.0.3" not in words


def test_a_node_with_room_is_only_slow_to_start_them() -> None:
    free = {"id of 10.0.0.1": {"CPU": 3.0, "GPU": 0.5}}
    for wanted, has_room in (('{"GPU": 0.5, "CPU": 1}', True), ('{"GPU": 0.6}', False)):
        words = unplaced_words(1, wanted, GENERATION, [node("10.0.0.1")], free, [])
        assert (words == "") is has_room


def test_without_any_node_it_says_so() -> None:
    assert "there is none" in unplaced_words(1, "{}", GENERATION, [], {}, [])
