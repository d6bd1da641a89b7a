"""How many GPUs a replica asks Ray for."""

from collections.abc import Iterable, Mapping
from typing import Any

from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.labels import GENERATION_LABEL, SIMULATED_LABEL


def num_gpus_for(generation: str, nodes: Iterable[Mapping[str, Any]]) -> int:
    """GPUs that a replica on nodes of a generation asks for: what it is built with stays so.

    One of a CUDA generation asks for one, whatever is up while it is built: a GPU node may be
    yet to come, or be away for a moment. Only where all nodes simulate it, it takes what they
    have.

    Args:
        generation: that the replica is bound to.
        nodes: as `ray.nodes()` returns them.
    """
    if Generation.parse(generation).platform is Platform.CPU:
        return 0
    of_it = [n for n in nodes if n["Alive"] and n["Labels"].get(GENERATION_LABEL) == generation]
    is_simulated = of_it and all(n["Labels"].get(SIMULATED_LABEL) == generation for n in of_it)
    return int(not is_simulated or all(n["Resources"].get("GPU", 0) >= 1 for n in of_it))
