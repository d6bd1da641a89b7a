"""The nodes of the Ray cluster, by the labels that each published when it started."""

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from services.contracts.errors import InvalidRequestError, NotReadyError
from services.contracts.hardware.node_class import NodeClass
from services.controller.interfaces import NodePool

logger = logging.getLogger(__name__)

_FIX = 'start it by: ray start --labels "$(smelt node-labels)" ...'


# A build has the memory of a master, its float64 reference and a compiler.
_CORES_PER_BUILD = 2
_GIB_PER_BUILD = 8


def num_builds(node: Mapping[str, Any]) -> int:
    """How many builds a node takes at a time, by its cores and what Ray leaves of its memory.

    One with GPUs takes one: each tunes, proves and times on the first, and would meet the others
    there in its figures and its memory.
    """
    has = node.get("Resources") or {}
    if has.get("GPU"):
        return 1
    by_cores = has.get("CPU", 0.0) // _CORES_PER_BUILD
    by_memory = has.get("memory", 0.0) // (_GIB_PER_BUILD * 2**30)
    return max(int(min(by_cores, by_memory)), 1)


class RayNodes:
    """A NodeSource over `ray.nodes()`; Ray must be initialised before it is asked."""

    def __init__(self) -> None:
        """Nothing is asked of Ray yet."""
        self._warned: set[str] = set()

    def pools(self) -> list[NodePool]:
        """Nodes that are alive and labelled with their generation, by class.

        Raises:
            NotReadyError: Ray cannot be reached.
        """
        import ray

        try:
            nodes = ray.nodes()
        except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
            raise NotReadyError(f"Ray's nodes cannot be listed: {error}") from error
        by_class: defaultdict[NodeClass, list[dict[str, Any]]] = defaultdict(list)
        for node in nodes:
            # Ray lists nodes that died as well.
            if node["Alive"] and (found := self._node_class(node)):
                by_class[found].append(node)
        return [
            NodePool(
                node_class=node_class,
                source="ray",
                num_nodes=len(alike),
                # All of them may come to one node: Ray places what takes no resources anywhere.
                num_builds=min(map(num_builds, alike)),
                names=tuple(sorted(node["NodeID"] for node in alike)),
            )
            for node_class, alike in sorted(by_class.items(), key=lambda item: item[0].digest())
        ]

    def _node_class(self, node: dict[str, Any]) -> NodeClass | None:
        try:
            found = NodeClass.from_labels(node.get("Labels") or {})
            fault = "has no label smelt.dev/generation"
        except InvalidRequestError as error:
            found = None
            fault = str(error)
        if found is None and node["NodeID"] not in self._warned:
            self._warned.add(node["NodeID"])
            logger.warning(
                "Ray node %s at %s is not used: it %s; %s",
                node["NodeID"][:12],
                node["NodeManagerAddress"],
                fault,
                _FIX,
            )
        return found
