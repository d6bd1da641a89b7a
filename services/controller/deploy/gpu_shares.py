"""Which share of a GPU each deployment asks Ray for, by what proofs measured.

Ray keeps account of the shares, and nothing limits what a process then takes of its GPU.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from services.contracts.hardware.facts import Generation, Platform
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.selection.gpu_share import GpuShare, gpu_share, passed_proofs
from services.controller.interfaces import DeploymentKey, NodePool


class GpuShares:
    """The shares of deployments on GPUs; remembers generations whose nodes are away."""

    def __init__(
        self, engines_of: Callable[[Collection[str]], Mapping[str, Sequence[PublishedEngine]]]
    ) -> None:
        """`engines_of` has all engines of masters, by their digests."""
        self._engines_of = engines_of
        self._memory_gib: dict[str, int] = {}

    def of(
        self, versions: Sequence[ModelVersion], pools: Iterable[NodePool]
    ) -> dict[DeploymentKey, GpuShare]:
        """The share of each version on each CUDA generation; blocks.

        A replica may come to any node of its generation, so the smallest memory counts.
        """
        self._memory_gib |= _least_memory_gib(pools)
        if not self._memory_gib:
            return {}
        engines = self._engines_of({version.master.digest for version in versions})
        return {
            DeploymentKey(version.name, version.version, generation): gpu_share(
                version, passed_proofs(engines[version.master.digest], generation), memory_gib
            )
            for version in versions
            for generation, memory_gib in self._memory_gib.items()
        }


def _least_memory_gib(pools: Iterable[NodePool]) -> dict[str, int]:
    least: dict[str, int] = {}
    for pool in pools:
        found = pool.node_class
        if pool.num_nodes and Generation.parse(found.generation).platform is Platform.CUDA:
            memory_gib = found.memory_gib
            least[found.generation] = min(least.get(found.generation, memory_gib), memory_gib)
    return least
