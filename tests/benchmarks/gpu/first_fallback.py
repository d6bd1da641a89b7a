"""How soon a replica without an engine answers on this GPU: by the fallback, by ONNX Runtime.

    python -m tests.benchmarks.gpu.first_fallback FOLDER NAME WAY

NAME is one of `sources.py`, WAY is compiled or onnxruntime. The model is published below
FOLDER by the first call; each later one is a process with empty compiler caches. Seconds count from
the start of the process until the engine is loaded and has answered at each size that is served.
"""

import sys
import time

BEGAN_S = time.monotonic()

import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

if TYPE_CHECKING:
    from services.contracts.registry.registry import Registry


def main(folder: str, name: str, way: str) -> int:
    """Load what serves in that way, ask it at all edges, and print the seconds."""
    from services.contracts.registry.registry import Registry
    from services.contracts.store.object_store import open_store
    from services.engines.device.device_probe import probe_device
    from services.engines.onnxruntime_engine import OnnxruntimeEngine
    from services.replica.engine.fallback import CompiledFallback
    from services.replica.engine.samples import sample_inputs, warm_up_sizes

    root = Path(folder)
    is_new = not (root / "store").exists()
    registry = Registry(open_store(str(root / "store")), Path(tempfile.mkdtemp()))
    if is_new:
        publish(registry, root, name)
        return 0
    model = registry.model_version(name)
    if way == "onnxruntime":
        path = registry.materialise_master(model.master) / "model.onnx"
        engine = OnnxruntimeEngine.of_master(model.master, model.buckets, path)
    else:
        load = CompiledFallback(str(root / "store"), Path(tempfile.mkdtemp()), probe_device())
        engine = load(model)
    loaded_s = time.monotonic() - BEGAN_S
    specs = model.master.inputs
    runs = [
        sample_inputs(model.master, model.recipe.inputs, s)
        for s in warm_up_sizes(specs, model.buckets)
    ]
    for inputs in runs:
        engine.run(inputs)
    warm_s = time.monotonic() - BEGAN_S
    began_s = time.monotonic()
    engine.run(runs[-1])
    last_ms = 1e3 * (time.monotonic() - began_s)
    print(f"{name} {way}: loaded {loaded_s:.1f} s, warm {warm_s:.1f} s, largest {last_ms:.1f} ms")
    return 0


def publish(registry: "Registry", root: Path, name: str) -> None:
    """Export a source and add it, without a verdict on its import."""
    from compiler_worker.master.opened import open_master
    from compiler_worker.master.source import OnnxFile
    from tests.benchmarks.gpu.engine_build import export
    from tests.benchmarks.gpu.sources import SOURCES

    source = SOURCES[name]
    export(source, root / f"{name}.onnx")
    opened = open_master(OnnxFile(path=root / f"{name}.onnx"), root / "master", print)
    registry.add_model_version(
        name=name,
        master=registry.publish_master(opened),
        recipe=source.recipe,
        source=name,
        source_fingerprint="0",
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
