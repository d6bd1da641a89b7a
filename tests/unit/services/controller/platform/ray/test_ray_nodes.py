"""How many builds a Ray node takes at a time."""

import pytest

from services.controller.platform.ray.ray_nodes import num_builds

GIB = 2**30


@pytest.mark.parametrize(
    ("cores", "memory_gib", "wanted"),
    [
        (0, 64, 1),  # a head that takes no replicas
        (1, 2, 1),
        (2, 64, 1),
        (3, 64, 1),
        (4, 64, 2),
        (16, 64, 8),
        (16, 20, 2),
        (64, 7, 1),
    ],
)
def test_half_the_cores_as_far_as_there_is_memory(
    cores: float, memory_gib: float, wanted: int
) -> None:
    assert num_builds({"Resources": {"CPU": cores, "memory": memory_gib * GIB}}) == wanted


@pytest.mark.parametrize("num_gpus", [1, 8])
def test_a_node_with_gpus_takes_one(num_gpus: float) -> None:
    has = {"CPU": 16, "memory": 128 * GIB, "GPU": num_gpus}
    assert num_builds({"Resources": has}) == 1


def test_a_node_that_names_no_resources_takes_one() -> None:
    assert num_builds({"NodeID": "a"}) == num_builds({"Resources": None}) == 1
