"""From a store to the first proven answer, in a process of its own with empty caches.

    python -m tests.benchmarks.gpu.first_answer STORE NAME STARTED

STARTED is the clock (`date +%s.%N`) just before the process was started, so imports count.
An answer is proven when it is the one that the source gave in float32, as near as the
tolerance of the engine's precision asks.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

MAX_REL_L2 = 5e-3


def main(store: str, name: str, started: str) -> int:
    """Load, ask, compare, and print the seconds of each stage."""
    laps = {"interpreter and numpy": time.time() - float(started)}

    def lap(stage: str) -> None:
        laps[stage] = time.time() - float(started) - sum(laps.values())

    from services.contracts.registry.registry import Registry
    from services.contracts.store.object_store import open_store
    from services.engines.base import LoadSpec
    from services.engines.device.device_probe import probe_device
    from services.engines.inductor.inductor_engine import InductorEngine

    lap("imports of Smelt")
    registry = Registry(open_store(f"{store}/store"), Path(tempfile.mkdtemp()))
    version = registry.model_version(name)
    [engine] = registry.engines(version.master.digest)
    spec = LoadSpec(
        manifest=engine.manifest,
        master=version.master,
        directory=registry.materialise_engine(engine),
        master_path=registry.materialise_master(version.master) / "model.onnx",
        device=probe_device(),
    )
    lap("store to disk")
    import torch

    lap("import of torch")
    torch.zeros(1, device="cuda")
    lap("CUDA context")
    served = InductorEngine.load(spec)
    lap("load and capture")
    known = dict(np.load(f"{store}/answers.npz"))
    wanted = known.pop("answer")
    [found] = served.run(known).values()
    lap("first answer")
    error = float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
    text = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in laps.items())
    print(f"{name}: first answer after {sum(laps.values()):.2f} s ({text}); rel L2 {error:.1e}")
    return 0 if error <= MAX_REL_L2 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
