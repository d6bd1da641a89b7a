"""Which on-demand deployments leave a generation's nodes, by what Ray and Serve tell."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from services.contracts.hardware.labels import GENERATION_LABEL
from services.controller.interfaces import DeploymentKey
from services.controller.room import Held, Room, RoomRequest

GENERATION = "cuda-sm90"


def key(name: str) -> DeploymentKey:
    return DeploymentKey(name, 1, GENERATION)


def details(share: float, *nodes: str, **config: Any) -> dict[str, Any]:
    """A deployment as Serve details it; a node "" is that of a replica that waits."""
    options = {"num_cpus": 0.1, "num_gpus": share}
    return {
        "deployment_config": {"ray_actor_options": options} | config,
        "replicas": [{"node_id": node} if node else {} for node in nodes],
    }


def room(
    deployments: Mapping[str, dict[str, Any]], gpus: Mapping[str, int], free: Mapping[str, float]
) -> Room:
    """Nodes by name with so many GPUs, of which so much is free."""
    nodes = [
        {
            "NodeID": node,
            "Labels": {GENERATION_LABEL: GENERATION},
            "Resources": {"GPU": float(num), "CPU": 8.0},
        }
        for node, num in gpus.items()
    ]
    other = {"NodeID": "other", "Labels": {}, "Resources": {"GPU": 8.0, "CPU": 8.0}}
    unused = {node: {"GPU": amount, "CPU": 8.0} for node, amount in free.items()}
    held = {key(name): Held.of(each) for name, each in deployments.items()}
    return Room.of(GENERATION, [*nodes, other], unused, held)


def request(waiting: str, may_leave: str, modest: str = "", leaving: str = "") -> RoomRequest:
    """By names of one letter."""
    return RoomRequest(
        waiting=[key(name) for name in waiting],
        modest=[key(name) for name in modest],
        may_leave=[key(name) for name in may_leave],
        leaving=[key(name) for name in leaving],
        is_late=True,
    )


def names(keys: Sequence[DeploymentKey]) -> str:
    return "".join(each.name for each in keys)


@pytest.mark.parametrize(
    ("asked", "gone"),
    [
        (request("w", "ab"), "a"),
        (request("w", "ba"), "b"),
        (request("w", "b", leaving="a"), ""),
        (request("wv", "ab"), "ab"),
        (request("wvu", "ab"), "ab"),
        (request("w", ""), ""),
        (request("", "ab", modest="w"), "w"),
        (request("w", "ab", modest="v"), "av"),
        (request("x", "ab"), ""),
        # As a controller that has just started knows them.
        (request("", "", modest="wabx"), "w"),
    ],
)
def test_as_many_as_it_takes_leave_the_first_one_first(asked: RoomRequest, gone: str) -> None:
    deployments = {name: details(0.4, "n", num_replicas=1) for name in "ab"}
    deployments |= {
        name: details(0.4, "", num_replicas=1)
        for name in "wvu"
        if key(name) in (*asked.waiting, *asked.modest)
    }
    deployments["x"] = details(0.1, "n", num_replicas=1)
    found = room(deployments, {"n": 1}, {"n": 0.1})
    assert names(found.must_leave(asked)) == gone


@pytest.mark.parametrize(
    ("config", "gone"),
    [
        ({"autoscaling_config": {"min_replicas": 1}}, ""),
        ({"num_replicas": 2}, "b"),
    ],
)
def test_replicas_that_are_given_up_for_others_are_no_reason_to_leave(
    config: dict[str, Any], gone: str
) -> None:
    deployments = {
        "a": details(0.4, "n", "n", **config),
        "b": details(0.2, "n", num_replicas=1),
        "w": details(0.2, "", num_replicas=1),
    }
    found = room(deployments, {"n": 1}, {"n": 0.0})
    assert names(found.must_leave(request("w", "b"))) == gone


def test_cpus_are_room_as_well() -> None:
    deployments = {name: details(0.0, "n", num_replicas=40) for name in "ab"}
    deployments["w"] = details(0.0, "", num_replicas=1)
    assert names(room(deployments, {"n": 0}, {}).must_leave(request("w", "ab"))) == "a"


@pytest.mark.parametrize(
    ("gpus", "free", "gone"),
    [
        # The sum is there, on no one node: of the node where one leaving will do.
        ({"n": 1, "m": 1}, {"n": 0.2, "m": 0.3}, "a"),
        ({"n": 1, "m": 1}, {"n": 0.0, "m": 0.3}, "b"),
        # Ray places it at any moment.
        ({"n": 1, "m": 1}, {"n": 0.2, "m": 0.5}, ""),
        # On two GPUs of one node 0.4 may be twice 0.2.
        ({"n": 2, "m": 1}, {"n": 0.4, "m": 0.0}, "a"),
        ({"n": 1, "m": 1}, {"n": 0.0, "m": 0.0}, "ac"),
    ],
)
def test_of_what_ray_does_not_place_one_after_the_other_leaves(
    gpus: dict[str, int], free: dict[str, float], gone: str
) -> None:
    deployments = {
        "a": details(0.2, "n", num_replicas=1),
        "b": details(0.2, "m", num_replicas=1),
        "c": details(0.2, "n", num_replicas=1),
        "w": details(0.4, "", num_replicas=1),
    }
    found = room(deployments, gpus, free)
    assert names(found.next_to_leave(key("w"), [key(name) for name in "abc"])) == gone
