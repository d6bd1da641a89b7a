"""How many GPUs a replica asks for, and how many threads it takes."""

import os
from typing import Any

import pytest

from services.contracts.hardware.labels import GENERATION_LABEL, SIMULATED_LABEL
from services.replica.gpu_request import num_gpus_for
from services.replica.own_threads import claim_threads
from services.replica.ray_worker.environment import node_environment, own_environment

GENERATION = "cuda-sm90"


def _node(
    generation: str = GENERATION, *, simulates: str = "", num_gpus: int = 0, is_alive: bool = True
) -> dict[str, Any]:
    labels = {GENERATION_LABEL: generation} | ({SIMULATED_LABEL: simulates} if simulates else {})
    return {"Alive": is_alive, "Labels": labels, "Resources": {"CPU": 8.0, "GPU": num_gpus}}


SIMULATED = _node(simulates=GENERATION)


@pytest.mark.parametrize(
    ("generation", "nodes", "wanted"),
    [
        (GENERATION, [], 1),
        (GENERATION, [_node("cpu-x86_64-v3")], 1),
        (GENERATION, [_node(num_gpus=8)], 1),
        # Its device plugin or driver is away for a moment.
        (GENERATION, [_node()], 1),
        (GENERATION, [SIMULATED], 0),
        (GENERATION, [SIMULATED, _node(num_gpus=8)], 1),
        (GENERATION, [_node(simulates=GENERATION, num_gpus=1)], 1),
        (GENERATION, [_node(simulates=GENERATION, is_alive=False)], 1),
        (GENERATION, [_node("cuda-sm80", simulates="cuda-sm80")], 1),
        ("cpu-x86_64-v3", [_node("cpu-x86_64-v3", num_gpus=8)], 0),
    ],
)
def test_a_gpu_is_asked_for_by_generation_and_not_by_what_is_up(
    generation: str, nodes: list[dict[str, Any]], wanted: int
) -> None:
    assert num_gpus_for(generation, nodes) == wanted


@pytest.mark.parametrize("num_threads", [0, 3])
def test_threads_are_those_of_the_node(num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5})
    claim_threads(num_threads)
    assert os.environ["OMP_NUM_THREADS"] == str(num_threads or 2)


def test_a_replica_asks_for_no_environment_that_its_nodes_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only without one does Ray take a worker that runs already."""
    for name in own_environment():
        monkeypatch.delenv(name, raising=False)
    wanted = own_environment()
    assert wanted["OMP_NUM_THREADS"] == ""
    for name, value in node_environment().items():
        assert own_environment() == wanted
        monkeypatch.setenv(name, value)
    assert own_environment() == {}
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")
    assert own_environment() == wanted
