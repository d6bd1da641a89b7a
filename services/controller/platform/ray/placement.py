"""Why Ray places a replica nowhere, for people: what it needs, what nodes have, what holds it."""

from collections.abc import Iterable, Mapping
from typing import Any

from services.contracts.hardware.labels import GENERATION_LABEL
from services.controller.interfaces import DeploymentKey, Unplaced
from services.controller.platform.ray.gpu_room import GpuNode, gives_way, no_gpu_words
from services.controller.room import Held

_RESOURCES = ("GPU", "CPU")
_FIX = ". Add a node, or unload or remove a model"


def unplaced(
    num_replicas: int,
    key: DeploymentKey,
    nodes: Iterable[Mapping[str, Any]],
    free: Mapping[str, Mapping[str, float]],
    held: Mapping[DeploymentKey, Held],
) -> Unplaced:
    """Why replicas are placed nowhere, and what could give way to them.

    Args:
        num_replicas: that wait.
        key: of their deployment.
        nodes: as `ray.nodes()` gives them.
        free: unused resources of each node, by its id.
        held: by deployments for that generation, this one's too.
    """
    there = [
        node
        for node in nodes
        if node["Alive"] and (node.get("Labels") or {}).get(GENERATION_LABEL) == key.generation
    ]
    wanted = held[key].amounts
    share = held[key].gpu_share
    others = {name: amount for name, amount in wanted.items() if name != "GPU"}
    if share and any(_has_room(others, free.get(node["NodeID"], {})) for node in there):
        gpus = [GpuNode.of(node, free.get(node["NodeID"], {})) for node in there]
        words = f"{no_gpu_words(share, key.generation, gpus, held)}{_FIX}"
        return Unplaced(words, gives_way(key, share, gpus, held))
    have = "; ".join(
        f"{node['NodeManagerAddress']} has {_amounts(node.get('Resources') or {})}, free: "
        f"{_amounts(free.get(node['NodeID'], {}))}"
        for node in there
    )
    replicas = ", ".join(
        f"{other.name} version {other.version} ({len(each.nodes)})"
        for other, each in held.items()
        if other != key
    )
    return Unplaced(
        f"no node has capacity for {num_replicas} of its replicas: each wants {_amounts(wanted)} "
        f"on a node of {key.generation}; {have or 'there is none'}; "
        f"replicas there: {replicas or 'none'}{_FIX}"
    )


def _has_room(wanted: Mapping[str, float], free: Mapping[str, float]) -> bool:
    return all(free.get(name, 0.0) >= amount for name, amount in wanted.items())


def _amounts(resources: Mapping[str, float]) -> str:
    found = [f"{resources[name]:g} {name}" for name in _RESOURCES if resources.get(name)]
    return ", ".join(found) or "no CPU and no GPU"
