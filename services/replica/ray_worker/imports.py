"""What a worker of Ray has imported before it takes an actor: most of a replica's start.

On a local Ray the fork server imports this module, for all that it forks; elsewhere each worker
does (`RAY_preload_python_modules`). Nothing else may.
"""

import importlib
import os
from typing import Final

from services.engines.torch_runtime.waiting_threads import use_passive_wait_policy
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
_BY_NVML: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"


def import_ahead() -> None:
    """Import what replicas on GPUs need; nothing on other hosts."""
    if not has_gpu():
        return
    use_passive_wait_policy()
    given = os.environ.pop(_BY_NVML, None)
    os.environ[_BY_NVML] = "1"
    for name in _MODULES:
        importlib.import_module(name)
    # What replicas do later is the host's own choice again.
    del os.environ[_BY_NVML]
    if given is not None:
        os.environ[_BY_NVML] = given


import_ahead()
