"""Which GPUs have room for a replica, which deployments hold them, and which could give way."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from services.contracts.hardware.node_class import GENERATION_LABEL, NodeClass
from services.controller.interfaces import DeploymentKey

# Ray counts in steps of 0.0001; sums of shares here are off by less.
_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class GpuNode:
    """A node, as Ray tells of it: how much of its GPUs is free it only tells as a sum.

    Attributes:
        memory_gib: of each GPU; 0 when unknown.
        free: GPUs.
    """

    node_id: str
    address: str
    memory_gib: int
    num_gpus: float
    free: float

    @classmethod
    def of(cls, node: Mapping[str, Any], free: Mapping[str, float]) -> Self:
        """From `ray.nodes()` and what of that node is unused."""
        found = NodeClass.from_labels(node.get("Labels") or {})
        return cls(
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            memory_gib=found.memory_gib if found else 0,
            num_gpus=(node.get("Resources") or {}).get("GPU", 0.0),
            free=free.get("GPU", 0.0),
        )

    def would_have_room(self, share: float, freed: float) -> bool:
        """Whether one of its GPUs has so much free for certain, were `freed` of it so too.

        Each has at least what all would have if they had the same.
        """
        return self.free / max(self.num_gpus, 1) + freed + _ROUNDING >= share

    def words(self) -> str:
        """What is free, and where."""
        together = f" of {self.num_gpus:g} GPUs" if self.num_gpus > 1 else ""
        return f"{memory_words(self.free, self.memory_gib)}{together} at {self.address}"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A deployment on the generation.

    Attributes:
        share: of a GPU, that each of its replicas holds.
        nodes: of its replicas, by id.
    """

    key: DeploymentKey
    share: float
    nodes: Sequence[str]

    def words(self, memory_gib: int) -> str:
        """What its replicas hold together."""
        held = memory_words(self.share * len(self.nodes), memory_gib)
        return f"{self.key.name} version {self.key.version}: {held}"


def most_free_gpus(
    nodes: Iterable[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """The most that a node of each generation has free, of all its GPUs together.

    Args:
        nodes: as `ray.nodes()` gives them.
        free: unused resources of each node, by its id.
    """
    most: dict[str, float] = {}
    for node in nodes:
        generation = (node.get("Labels") or {}).get(GENERATION_LABEL)
        if node["Alive"] and generation:
            here = free.get(node["NodeID"], {}).get("GPU", 0.0)
            most[generation] = max(most.get(generation, 0.0), here)
    return most


def memory_words(share: float, memory_gib: int) -> str:
    """A share of a GPU as the memory that it stands for, or as it is where that is unknown."""
    return f"{share * memory_gib:.1f} GiB" if memory_gib else f"{share:g} GPU"


def no_gpu_words(
    share: float, generation: str, nodes: Sequence[GpuNode], holders: Sequence[Holder]
) -> str:
    """Why replicas have no GPU, by what the smallest one has.

    Args:
        share: of a GPU, that each wants.
        generation: whose nodes they must be on.
        nodes: of that generation, at least one.
        holders: what may be on them.
    """
    memory_gib = min(node.memory_gib for node in nodes)
    part = f" ({share:g} of a GPU of {memory_gib} GiB)" if memory_gib else ""
    held = ", ".join(each.words(memory_gib) for each in holders if each.share and each.nodes)
    return (
        f"needs {memory_words(share, memory_gib)}{part} on {generation}; "
        f"free: {', '.join(node.words() for node in nodes)}; held by {held or 'nothing of Smelt'}"
    )


def gives_way(
    key: DeploymentKey, share: float, nodes: Sequence[GpuNode], holders: Sequence[Holder]
) -> tuple[DeploymentKey, ...]:
    """Other versions of the same model that hold the place which a replica of `key` would have.

    None does where models that are nowhere yet wait as well, and would take the place: better
    an old version serves than none. With the one that holds it go those that wait for it too.

    Args:
        key: of the deployment that has no room.
        share: of a GPU, that each of its replicas wants.
        nodes: of its generation.
        holders: what may be on them.
    """
    placed = {holder.key.name for holder in holders if holder.nodes}
    waiting = [holder.share for holder in holders if holder.key.name not in placed]

    def would_do(node: GpuNode, freed: float) -> bool:
        taken = sum(other for other in waiting if node.would_have_room(other, freed))
        return node.would_have_room(share + taken, freed)

    def freed(holder: Holder, node: GpuNode) -> float:
        # Of several GPUs, each may have one of its replicas.
        return holder.share * (holder.nodes.count(node.node_id) if node.num_gpus <= 1 else 1)

    others = [each for each in holders if each.key.name == key.name and each.key != key]
    ways = [
        holder.key
        for holder in others
        if any(n.node_id in holder.nodes and would_do(n, freed(holder, n)) for n in nodes)
    ]
    # One that waits itself would take the place.
    waits = [holder.key for holder in others if not holder.nodes]
    return (*ways, *waits) if ways else ()
