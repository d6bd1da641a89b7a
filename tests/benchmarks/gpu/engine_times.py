"""Times a published inductor engine beside eager and torch.compile, in a fresh process.

    python -m tests.benchmarks.gpu.engine_times STORE CACHE MODEL OUT.json

All four compute the same fp16 graph on the same device tensors at 128 tokens: eager,
torch.compile (its defaults), the engine without a graph, the engine under its CUDA graph.
They take turns call by call; each time is the median of CUDA events. `request` is the
engine's `run` with its copies from and to the host.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from compiler_worker.models import FxModel
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.sampling import draw_sample
from services.contracts.manifest import ModelVersion, PublishedEngine
from services.contracts.object_store import open_store
from services.contracts.registry import Registry
from services.contracts.tensors import Array
from services.engines.base import LoadSpec
from services.engines.cuda_graph import capture_cuda_graph, run_directly
from services.engines.device_probe import probe_device
from services.engines.inductor_artifact import ArtifactProgram
from services.engines.inductor_engine import InductorEngine
from tests.benchmarks.gpu.engine_build import BATCHES, NUM_TOKENS

NUM_CALLS = 200
Calls = dict[str, Callable[[], Any]]


def main(store: str, cache: str, model: str, out: str) -> int:
    """Load, check, time, and print one row per batch size."""
    registry = Registry(open_store(store), Path(cache))
    version = registry.model_version(f"{model}-gpu")
    [engine] = registry.engines(version.master.digest)
    spec = _load_spec(registry, version, engine)
    started = time.perf_counter()
    served = InductorEngine.load(spec)
    load_s = time.perf_counter() - started
    rows = [_row(spec, version, served, batch) for batch in BATCHES]
    document = {
        "device": torch.cuda.get_device_name(),
        "generation": spec.device.generation,
        "toolchain": engine.manifest.key.toolchain,
        "engine": engine.digest,
        "engine_bytes": engine.manifest.num_bytes,
        "build_s": engine.manifest.build_duration_s,
        "load_s": load_s,
        "proof": engine.proof.model_dump(mode="json"),
        "rows": rows,
    }
    Path(out).write_text(json.dumps(document, indent=1))
    print({k: v for k, v in document.items() if k not in ("proof", "rows")})
    for row in rows:
        print({name: f"{value:.4g}" for name, value in row.items()})
    return 0


def _load_spec(registry: Registry, version: ModelVersion, engine: PublishedEngine) -> LoadSpec:
    return LoadSpec(
        manifest=engine.manifest,
        master=version.master,
        directory=registry.materialise_engine(engine),
        master_path=registry.materialise_master(version.master) / "model.onnx",
        device=probe_device(),
    )


def _row(
    spec: LoadSpec, version: ModelVersion, served: InductorEngine, batch: int
) -> dict[str, float]:
    [bucket] = [b for b in version.recipe.buckets if b.dims["batch"].max == batch]
    sizes = {"batch": batch, "sequence": NUM_TOKENS}
    inputs = draw_sample(version.master, version.recipe, bucket, sizes).inputs
    times_ms = _device_times(_calls(spec, inputs, batch))
    reference = FxModel.open(spec.master_path, version.master, device="cuda", is_double=True)
    return {
        "batch": batch,
        **times_ms,
        "request": _host_time(lambda: served.run(inputs)),
        "rel_l2": _rel_l2(served.run(inputs), reference.run(inputs)),
    }


def _calls(spec: LoadSpec, inputs: Mapping[str, Array], batch: int) -> Calls:
    """The four sides, each a call without arguments on tensors that are on the device."""
    module = graph_module_from_onnx(onnx.load(spec.master_path), float_dtype=torch.float16).cuda()
    tensors = [torch.from_numpy(inputs[each.name]).cuda() for each in version_inputs(spec)]
    torch._dynamo.reset()
    compiled = torch.compile(module, dynamic=False)
    plain = ArtifactProgram.load(spec, device="cuda", capture=run_directly)
    graphed = ArtifactProgram.load(spec, device="cuda", capture=capture_cuda_graph)
    arrays = [inputs[each.name] for each in version_inputs(spec)]
    sizes = {"batch": batch, "sequence": NUM_TOKENS}
    for program in (plain, graphed):
        program.run(arrays, sizes)  # fills the bucket's buffers
    index = BATCHES.index(batch)
    return {
        "eager": lambda: module(*tensors),
        "torch.compile": lambda: compiled(*tensors),
        "engine": plain._programs[index].call,
        "engine + graph": graphed._programs[index].call,
    }


def version_inputs(spec: LoadSpec) -> tuple[Any, ...]:
    """The model's inputs in graph order."""
    return spec.manifest.inputs


def _device_times(calls: Calls) -> dict[str, float]:
    """Median milliseconds of each side; the sides alternate."""
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in calls}
    with torch.inference_mode():
        for call in calls.values():
            for _ in range(10):
                call()
        torch.cuda.synchronize()
        for _ in range(NUM_CALLS):
            for name, call in calls.items():
                pair = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
                pair[0].record()
                call()
                pair[1].record()
                # One call at a time: otherwise the queue hides what launching costs.
                torch.cuda.synchronize()
                events[name].append(pair)
    return {n: float(np.median([a.elapsed_time(b) for a, b in p])) for n, p in events.items()}


def _host_time(call: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(NUM_CALLS):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds)) * 1000


def _rel_l2(outputs: Mapping[str, Array], reference: Mapping[str, Array]) -> float:
    [name] = outputs
    out, ref = outputs[name].astype(np.float64), reference[name].astype(np.float64)
    return float((np.linalg.norm(out - ref, axis=-1) / np.linalg.norm(ref, axis=-1)).max())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
