"""Why Ray places a replica nowhere, for people: what it needs, what nodes have, what holds it."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from services.contracts.hardware.node_class import GENERATION_LABEL

# Serve's message about replicas that have waited for a node for half a minute; those that load have
# "to initialize" in this place.
_WAITING = re.compile(
    r"has (\d+) replicas that have taken more than [\d.]+s to be scheduled.*"
    r"Resources required for each replica: (\{.*?\})",
    re.DOTALL,
)
_RESOURCES = ("GPU", "CPU")


def waiting_replicas(message: str) -> tuple[int, str] | None:
    """How many replicas wait for a node, and what each needs; None when none does.

    Args:
        message: of Serve, about a deployment.
    """
    found = _WAITING.search(message)
    return (int(found[1]), found[2]) if found else None


def unplaced_words(
    num_replicas: int,
    wanted: str,
    generation: str,
    nodes: Iterable[Mapping[str, Any]],
    free: Mapping[str, Mapping[str, float]],
    holders: Sequence[tuple[str, int]],
) -> str:
    """Why replicas are placed nowhere; "" where a node has the resources and is only slow.

    Args:
        num_replicas: that wait.
        wanted: resources of each, in Serve's notation.
        generation: whose nodes they must be on.
        nodes: as `ray.nodes()` gives them.
        free: unused resources of each node, by its id.
        holders: applications with replicas on that generation, and how many each has.
    """
    there = [
        node
        for node in nodes
        if node["Alive"] and (node.get("Labels") or {}).get(GENERATION_LABEL) == generation
    ]
    amounts: dict[str, float] = json.loads(wanted)
    if any(_has_room(amounts, free.get(node["NodeID"], {})) for node in there):
        return ""
    have = "; ".join(
        f"{node['NodeManagerAddress']} has {_amounts(node.get('Resources') or {})}, free: "
        f"{_amounts(free.get(node['NodeID'], {}))}"
        for node in there
    )
    held = ", ".join(f"{name} ({num})" for name, num in holders)
    return (
        f"no node has room for {num_replicas} of its replicas: each wants {wanted} on a node of "
        f"{generation}; {have or 'there is none'}; replicas there: {held or 'none'}. Add a node, "
        "or unload or remove a model"
    )


def _has_room(wanted: Mapping[str, float], free: Mapping[str, float]) -> bool:
    return all(free.get(name, 0.0) >= amount for name, amount in wanted.items())


def _amounts(resources: Mapping[str, float]) -> str:
    found = [f"{resources[name]:g} {name}" for name in _RESOURCES if resources.get(name)]
    return ", ".join(found) or "no CPU and no GPU"
