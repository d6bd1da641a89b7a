"""What a worker of Ray has imported before it takes an actor: most of a replica's start.

On a local Ray the fork server imports this module, for all that it forks; elsewhere each worker
does (`RAY_preload_python_modules`). Nothing else may.
"""

import importlib
from typing import Final

from services.engines.torch_runtime.waiting_threads import use_passive_wait_policy
from services.replica.ray_worker.environment import changed_for_imports
from services.replica.ray_worker.spare import has_gpu

# On hosts with a GPU alone: elsewhere most engines need no torch.
_MODULES: Final = (
    "services.replica.deployment",
    "services.engines.inductor.cuda_graph",
    "services.engines.inductor.inductor_artifact",
    # What loading an artifact imports one by one.
    "torch._inductor.async_compile",
    "torch._inductor.compile_fx",
    "torch._inductor.runtime.triton_heuristics",
    "torch._inductor.select_algorithm",
    "torch._inductor.standalone_compile",
)
# Modules ask torch whether there is a GPU; by default it initialises CUDA for the answer.
_BY_NVML: Final = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def import_ahead() -> None:
    """Import what replicas on GPUs need; nothing on other hosts."""
    if not has_gpu():
        return
    use_passive_wait_policy()
    with changed_for_imports(_BY_NVML):
        for name in _MODULES:
            importlib.import_module(name)


import_ahead()
