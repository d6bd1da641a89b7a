"""What a replica needs of a GPU's memory: what the controller asks for, by what proofs measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.cli.planning.plan_profile import DeviceOffer
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.registry.registry import Registry
from services.contracts.selection.gpu_share import gpu_share, passed_proofs, replica_bytes

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class ReplicaMemory:
    """Memory of one GPU.

    Attributes:
        share: of it that a replica asks for.
        needed_gib: the least that it has to have.
        memory_gib: of the GPU; 0 when unknown.
    """

    share: float
    needed_gib: float
    memory_gib: int

    @property
    def fits(self) -> bool:
        """Whether the GPU has so much at all."""
        return self.needed_gib <= self.memory_gib or not self.memory_gib

    def words(self) -> str:
        """The arithmetic, for people."""
        return (
            f"a replica needs {self.needed_gib:.1f} GiB (a CUDA context and the two largest of "
            f"its engines and fallback), and asks for {self.share:g} of a GPU of {self.memory_gib} "
            "GiB"
        )


def replica_memory(
    registry: Registry, version: ModelVersion, offers: Mapping[str, DeviceOffer]
) -> dict[str, ReplicaMemory]:
    """By generation, of GPUs alone.

    Args:
        registry: of the store.
        version: of the model.
        offers: devices that can be had.
    """
    engines = registry.engines(version.master.digest)
    return {
        generation: _of(
            version, engines, generation, offer.memory_gib or _least_gib(engines, generation)
        )
        for generation, offer in offers.items()
        if Generation.parse(generation).platform is Platform.CUDA
    }


def _of(
    version: ModelVersion, engines: Sequence[PublishedEngine], generation: str, memory_gib: int
) -> ReplicaMemory:
    proofs = passed_proofs(engines, generation)
    share = gpu_share(version, proofs, memory_gib)
    needed_gib = share.needed * memory_gib
    if not version.recipe.gpu_share:
        needed_gib = replica_bytes(version.master.num_parameters, proofs) / _GIB
    return ReplicaMemory(share=share.asked, needed_gib=needed_gib, memory_gib=memory_gib)


def _least_gib(engines: Sequence[PublishedEngine], generation: str) -> int:
    """Of the GPUs of a generation that proofs ran on; 0 of none."""
    devices = [engine.proof.device for engine in engines if engine.proof.device]
    return min((d.memory_gib for d in devices if d.generation == generation), default=0)
