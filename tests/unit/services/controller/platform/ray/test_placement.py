"""Why Ray places a replica nowhere."""

from typing import Any

import pytest

from services.contracts.hardware.labels import GENERATION_LABEL, PREFIX
from services.controller.interfaces import DeploymentKey, Unplaced
from services.controller.platform.ray.placement import unplaced
from services.controller.room import Held, Room

GENERATION = "cuda-sm90"
KEY = DeploymentKey("m", 2, GENERATION)


def node(
    name: str,
    generation: str = GENERATION,
    *,
    is_alive: bool = True,
    num_gpus: float = 1.0,
    memory_gib: str = "140",
) -> dict[str, Any]:
    return {
        "Alive": is_alive,
        "NodeID": f"id of {name}",
        "NodeManagerAddress": name,
        "Labels": {GENERATION_LABEL: generation, f"{PREFIX}memory-gib": memory_gib},
        "Resources": {"CPU": 16.0, "GPU": num_gpus, "memory": 1e9},
    }


def holder(name: str, version: int, share: float, *nodes: str) -> tuple[DeploymentKey, Held]:
    ids = [f"id of {node}" for node in nodes]
    return DeploymentKey(name, version, GENERATION), Held(amounts={"GPU": share}, nodes=ids)


def wants(
    share: float,
    nodes: list[dict[str, Any]],
    free: list[float],
    *held: tuple[DeploymentKey, Held],
) -> Unplaced:
    """One replica of version 2 of m that wants a share, where so much of each node is free."""
    left = {
        node["NodeID"]: {"CPU": 9.0, "GPU": gpus} for node, gpus in zip(nodes, free, strict=True)
    }
    own = Held(amounts={"CPU": 0.1, "GPU": share}, nodes=[])
    return unplaced(1, KEY, nodes, left, {KEY: own} | dict(held))


def test_it_says_what_is_wanted_what_there_is_and_who_holds_it() -> None:
    nodes = [node("10.0.0.1"), node("10.0.0.2", is_alive=False), node("10.0.0.3", "cuda-sm80")]
    free = {"id of 10.0.0.1": {"CPU": 3.0, "GPU": 1.0}, "id of 10.0.0.3": {"CPU": 9.0}}
    words, ways = unplaced(
        2,
        KEY,
        nodes,
        free,
        dict([holder("other", 1, 0.0, "10.0.0.1")])
        | {KEY: Held(amounts={"CPU": 4.0, "GPU": 0.0}, nodes=[])},
    )
    assert "no node has capacity for 2 of its replicas: each wants 4 CPU on a node of" in words
    assert (
        "10.0.0.1 has 1 GPU, 16 CPU, free: 1 GPU, 3 CPU; replicas there: other version 1 (1)."
        in (words)
    )
    assert "10.0.0.2" not in words
    assert "10.0.0.3" not in words
    assert ways == ()


def test_what_does_not_fit_is_refused_with_arithmetic() -> None:
    held = holder("a", 1, 0.43, "n"), holder("b", 2, 0.25, "n", "n"), holder("m", 2, 0.1)
    assert wants(0.1, [node("n")], [0.07], *held).words == (
        "needs 14.0 GiB (0.1 of a GPU of 140 GiB) on cuda-sm90; free: 9.8 GiB at n; "
        "held by a version 1: 60.2 GiB, b version 2: 70.0 GiB. "
        "Add a node, or unload or remove a model"
    )


@pytest.mark.parametrize(
    ("share", "nodes", "free", "wanted"),
    [
        (1.0, [node("n", memory_gib="")], [0.5], "needs 1 GPU on cuda-sm90; free: 0.5 GPU at n;"),
        # In GiB of the smallest, which it must fit on.
        (
            0.5,
            [node("n", memory_gib="80"), node("o")],
            [0.0, 0.25],
            "(0.5 of a GPU of 80 GiB) on cuda-sm90; free: 0.0 GiB at n, 35.0 GiB at o;",
        ),
        # Free in all, and perhaps in pieces.
        (0.5, [node("n", num_gpus=4)], [1.2], "free: 168.0 GiB of 4 GPUs at n;"),
    ],
)
def test_figures_are_of_the_smallest_gpu_and_of_every_node(
    share: float, nodes: list[dict[str, Any]], free: list[float], wanted: str
) -> None:
    found = wants(share, nodes, free).words
    assert wanted in found
    assert "held by nothing of Smelt. Add" in found


def test_a_node_with_gpus_that_lacks_processors_is_told_as_one_without_gpus() -> None:
    free = {"id of n": {"CPU": 0.0, "GPU": 1.0}}
    own = Held(amounts={"CPU": 0.1, "GPU": 0.5}, nodes=[])
    words, ways = unplaced(1, KEY, [node("n")], free, {KEY: own})
    assert "each wants 0.5 GPU, 0.1 CPU on a node of" in words
    assert ways == ()


@pytest.mark.parametrize(
    ("num_gpus", "free", "does"),
    # What one of several GPUs has is only certain as their mean.
    [(1, 0.2, True), (1, 0.1, False), (4, 0.8, True), (4, 0.6, False)],
)
def test_of_several_gpus_an_older_version_gives_way_where_that_is_certain_to_do(
    num_gpus: int, free: float, does: bool
) -> None:
    found = wants(0.5, [node("n", num_gpus=num_gpus)], [free], holder("m", 1, 0.3, "n"))
    assert bool(found.gives_way) is does


@pytest.mark.parametrize(
    ("held", "free", "does"),
    [
        ([holder("m", 1, 0.5, "n")], 0.1, True),
        ([holder("m", 1, 0.5, "n")], 0.0, True),
        ([holder("m", 1, 0.3, "n")], 0.1, False),  # it would not do
        ([holder("m", 1, 0.5, "elsewhere")], 0.1, False),
        ([holder("other", 1, 0.5, "n")], 0.1, False),
        ([holder("m", 2, 0.5, "n")], 0.1, False),  # its own, of fewer GPUs
        # A new model would take the place, where both do not fit into it.
        ([holder("m", 1, 0.5, "n"), holder("new", 1, 0.2)], 0.1, False),
        ([holder("m", 1, 0.5, "n"), holder("new", 1, 0.1)], 0.1, True),
        ([holder("m", 1, 0.5, "n"), holder("new", 1, 0.9)], 0.1, True),
        # One that is being rolled out as well serves all the same.
        ([holder("m", 1, 0.5, "n"), holder("o", 1, 0.2, "n"), holder("o", 2, 0.2)], 0.1, True),
    ],
)
def test_an_older_version_gives_way_where_that_makes_room(
    held: list[tuple[DeploymentKey, Held]], free: float, does: bool
) -> None:
    found = wants(0.5, [node("n")], [free], holder("m", 2, 0.5), *held)
    assert found.gives_way == ((DeploymentKey("m", 1, GENERATION),) if does else ())


@pytest.mark.parametrize(("num_gpus", "does"), [(1, True), (2, False)])
def test_an_older_version_gives_way_with_all_its_replicas_on_a_gpu(
    num_gpus: int, does: bool
) -> None:
    held = holder("m", 1, 0.3, "n", "n", "n")
    assert bool(wants(0.9, [node("n", num_gpus=num_gpus)], [0.1], held).gives_way) is does


def test_a_version_that_waits_itself_gives_way_with_the_one_that_has_the_place() -> None:
    held = holder("m", 1, 0.5, "n"), holder("m", 3, 0.4)
    found = wants(0.5, [node("n")], [0.1], *held, holder("m", 2, 0.5))
    assert found.gives_way == tuple(key for key, _ in held)
    assert wants(0.5, [node("n")], [0.1], held[1], holder("m", 2, 0.5)).gives_way == ()


def test_the_most_that_one_gpu_of_each_generation_has_free_for_certain() -> None:
    nodes = [node("a", num_gpus=2), node("b"), node("d", "cuda-sm80")]
    free = {"id of a": {"GPU": 0.6}, "id of b": {"GPU": 0.4}, "id of d": {"GPU": 1.0}}
    assert Room.of(GENERATION, nodes, free, {}).free_gpu == 0.4
    assert Room.of("cuda-sm90a", nodes, free, {}).free_gpu == 0.0


def test_without_any_node_it_says_so() -> None:
    assert "there is none" in wants(1.0, [], []).words
