"""Which GPUs have room for a replica, which deployments hold them, and which could give way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from services.contracts.hardware.node_class import NodeClass
from services.controller.interfaces import DeploymentKey
from services.controller.room import Held, sure_gpu

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
        """Whether one of its GPUs has so much free for certain, were `freed` of it so too."""
        return sure_gpu(self.free, self.num_gpus) + freed + _ROUNDING >= share

    def words(self) -> str:
        """What is free, and where."""
        together = f" of {self.num_gpus:g} GPUs" if self.num_gpus > 1 else ""
        return f"{memory_words(self.free, self.memory_gib)}{together} at {self.address}"


def memory_words(share: float, memory_gib: int) -> str:
    """A share of a GPU as the memory that it stands for, or as it is where that is unknown."""
    return f"{share * memory_gib:.1f} GiB" if memory_gib else f"{share:g} GPU"


def no_gpu_words(
    share: float, generation: str, nodes: Sequence[GpuNode], held: Mapping[DeploymentKey, Held]
) -> str:
    """Why replicas have no GPU, by what the smallest one has.

    Args:
        share: of a GPU, that each wants.
        generation: whose nodes they must be on.
        nodes: of that generation, at least one.
        held: by what may be on them.
    """
    memory_gib = min(node.memory_gib for node in nodes)
    part = f" ({share:g} of a GPU of {memory_gib} GiB)" if memory_gib else ""
    holders = ", ".join(
        f"{key.name} version {key.version}: "
        + memory_words(each.gpu_share * len(each.nodes), memory_gib)
        for key, each in held.items()
        if each.gpu_share and each.nodes
    )
    return (
        f"needs {memory_words(share, memory_gib)}{part} on {generation}; "
        f"free: {', '.join(node.words() for node in nodes)}; held by "
        f"{holders or 'nothing of Smelt'}"
    )


def gives_way(
    key: DeploymentKey,
    share: float,
    nodes: Sequence[GpuNode],
    held: Mapping[DeploymentKey, Held],
) -> tuple[DeploymentKey, ...]:
    """Other versions of the same model that hold the place which a replica of `key` would have.

    None does where models that are nowhere yet wait as well, and would take the place: better
    an old version serves than none. With the one that holds it go those that wait for it too.

    Args:
        key: of the deployment that has no room.
        share: of a GPU, that each of its replicas wants.
        nodes: of its generation.
        held: by what may be on them.
    """
    placed = {other.name for other, each in held.items() if each.nodes}
    waiting = [each.gpu_share for other, each in held.items() if other.name not in placed]

    def would_do(node: GpuNode, freed: float) -> bool:
        taken = sum(other for other in waiting if node.would_have_room(other, freed))
        return node.would_have_room(share + taken, freed)

    def freed(each: Held, node: GpuNode) -> float:
        # Of several GPUs, each may have one of its replicas.
        return each.gpu_share * (each.nodes.count(node.node_id) if node.num_gpus <= 1 else 1)

    others = {other: e for other, e in held.items() if other.name == key.name and other != key}
    ways = [
        other
        for other, each in others.items()
        if any(n.node_id in each.nodes and would_do(n, freed(each, n)) for n in nodes)
    ]
    # One that waits itself would take the place.
    waits = [other for other, each in others.items() if not each.nodes]
    return (*ways, *waits) if ways else ()
