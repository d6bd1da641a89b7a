"""Times published inductor engines beside their PyTorch source, eager and compiled.

    python -m tests.benchmarks.gpu.engine_times STORE NAME [MODE...]
    python -m tests.benchmarks.gpu.engine_times --only-compile NAME [MODE...]

All sides compute on the same tensors, which are on the device. They take turns call by call;
`call` is one call alone, from its launch to its end (median of CUDA events), `stream` is one
of many that are queued without waiting: what the GPU needs, and no less than the host needs
to launch. `kernels` and `gpu` come from torch.profiler. `unwritten` is the engine's graph as
it was before the rewrites, compiled and captured in the same way. MODEs are torch.compile's,
by default the two that use CUDA graphs; `--only-compile` fills torch.compile's caches for them.
"""

import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._inductor.standalone_compile import CompiledArtifact
from torch.utils.flop_counter import FlopCounterMode

from compiler_worker.builders.graphs import export_static, fx_graph
from services.contracts.hardware.kinds import Precision
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.engines.artifacts.artifact_index import INDEX, ArtifactIndex
from services.engines.artifacts.artifact_weights import WeightTable
from services.engines.base import LoadSpec
from services.engines.device.device_probe import probe_device
from services.engines.inductor.cuda_graph import Call, capture_cuda_graph
from services.engines.torch_runtime.programs import lifted_weights
from tests.benchmarks.gpu.sources import SOURCES, Source

NUM_CALLS = 200
NUM_QUEUED = 50
NUM_PROFILED = 3
MODES = ("reduce-overhead", "max-autotune")
SIDE = 8192
Calls = dict[str, Callable[[], Any]]
Run = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def main(store: str, name: str, *modes: str) -> int:
    """Load, check, time, and print one table for each batch size."""
    registry = Registry(open_store(f"{store}/store"), Path(tempfile.mkdtemp()))
    version = registry.model_version(name)
    engines = registry.engines(version.master.digest)
    loaded = {f"engine {e.manifest.key.precision}": _Loaded(registry, version, e) for e in engines}
    for number, batch in enumerate(SOURCES[name].batches):
        runs = {side: each.run_of(number) for side, each in loaded.items()}
        first = next(iter(loaded.values()))
        _report(name, batch, _calls(first.spec, runs, batch, SOURCES[name], modes or MODES))
    return 0


class _Loaded:
    """An engine's files, and its weights on the device."""

    def __init__(self, registry: Registry, version: ModelVersion, engine: PublishedEngine) -> None:
        self.spec = LoadSpec(
            manifest=engine.manifest,
            master=version.master,
            directory=registry.materialise_engine(engine),
            master_path=registry.materialise_master(version.master) / "model.onnx",
            device=probe_device(),
        )
        self._index = ArtifactIndex.from_json((self.spec.directory / INDEX).read_bytes())
        self._weights = WeightTable.open(self.spec.directory, self.spec.master_path, "cuda")

    def run_of(self, bucket: int) -> Run:
        """The call of one bucket's kernels."""
        artifact = self._index.artifacts[bucket]
        path = self.spec.directory / artifact.file
        code = CompiledArtifact.load(path=str(path), format="binary")
        return partial(_run, code, [self._weights.tensor(ref) for ref in artifact.weights])


def _run(
    code: Callable[..., Any], weights: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """The engine on the device alone: its own graph copies from and to the host too."""
    with torch.no_grad():
        return code(*weights, *inputs)  # type: ignore[no-any-return]


def _calls(
    spec: LoadSpec,
    runs: Mapping[str, Run],
    batch: int,
    source: Source,
    modes: Sequence[str],
) -> Calls:
    tensors = _tensors(source, batch)
    halves = _halves(tensors)
    module = source.make().cuda().half()
    calls: Calls = {"eager": lambda: module(*halves)}
    if any(each.dim() == 4 for each in halves):
        last = source.make().cuda().half().to(memory_format=torch.channels_last)
        moved = [each.to(memory_format=torch.channels_last) for each in halves]
        calls["eager channels last"] = lambda: last(*moved)
    for mode in modes:
        torch.compiler.reset()
        calls[f"compile {mode}"] = _compiled(source.make().cuda().half(), mode, halves)
    calls["unwritten"] = _unwritten(spec, batch, tensors)
    for side, run in runs.items():
        calls[side] = capture_cuda_graph(partial(run, tensors))
    with torch.no_grad():
        wanted = source.make().cuda()(*tensors)
    for side in ("eager", "unwritten", *runs):
        [found] = _listed(calls[side]())
        error = float((found.double() - wanted.double()).norm() / wanted.double().norm())
        print(f"{side} b{batch}: rel L2 to fp32 eager {error:.1e}")
    return calls


def _tensors(source: Source, batch: int) -> list[torch.Tensor]:
    return [torch.from_numpy(array).cuda() for array in source.inputs(batch).values()]


def _halves(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [each.half() if each.is_floating_point() else each for each in tensors]


def only_compile(name: str, *modes: str) -> int:
    """Fill torch.compile's caches."""
    source = SOURCES[name]
    for mode in modes or MODES:
        for batch in source.batches:
            torch.compiler.reset()
            _compiled(source.make().cuda().half(), mode, _halves(_tensors(source, batch)))
            print(f"{name} b{batch}: compiled {mode}", flush=True)
    return 0


def _compiled(module: torch.nn.Module, mode: str, inputs: Sequence[torch.Tensor]) -> Call:
    compiled = torch.compile(module, mode=mode, dynamic=False)

    def call() -> Any:
        with torch.no_grad():
            return compiled(*inputs)

    for _ in range(3):
        call()
    return call


def _unwritten(spec: LoadSpec, batch: int, inputs: Sequence[torch.Tensor]) -> Call:
    from torch._inductor import standalone_compile

    module = fx_graph(spec.master_path, Precision.FP16)
    program = export_static(module, spec.manifest.inputs, {"batch": batch}, "cuda")
    arguments = [*lifted_weights(program).values(), *inputs]
    with torch.no_grad():
        code = standalone_compile(
            program.graph_module, arguments, dynamic_shapes="from_example_inputs"
        )

    def call() -> Sequence[torch.Tensor]:
        with torch.no_grad():
            return code(*arguments)  # type: ignore[no-any-return]

    return capture_cuda_graph(call)


def _report(name: str, batch: int, calls: Calls) -> None:
    rate = _matmul_tflops()
    flops = _flops(calls["eager"])
    alone, queued = _alone_ms(calls), {side: _queued_ms(call) for side, call in calls.items()}
    print(f"{name} b{batch}; {SIDE}^3 bf16 matmul before {rate:.0f}, after {_matmul_tflops():.0f}")
    for side, call in calls.items():
        num_kernels, gpu_ms = _kernels(call)
        tflops = flops / alone[side] / 1e9
        print(
            f"| {side} | {alone[side]:.4f} | {queued[side]:.4f} | {num_kernels:.0f} "
            f"| {gpu_ms:.3f} | {alone['eager'] / alone[side]:.1f} | {tflops:.1f} "
            f"| {tflops / rate:.1%} |"
        )


def _flops(call: Callable[[], Any]) -> float:
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            call()
    except AssertionError:
        # torch 2.11 has no count for attention with grouped queries.
        return math.nan
    return counter.get_total_flops()


def _alone_ms(calls: Calls) -> dict[str, float]:
    """Median milliseconds of each side; the sides alternate."""
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in calls}
    with torch.no_grad():
        for call in calls.values():
            for _ in range(10):
                call()
        torch.cuda.synchronize()
        for _ in range(NUM_CALLS):
            for name, call in calls.items():
                pair = _pair()
                pair[0].record()
                call()
                pair[1].record()
                torch.cuda.synchronize()
                events[name].append(pair)
    return {n: float(np.median([a.elapsed_time(b) for a, b in p])) for n, p in events.items()}


def _queued_ms(call: Callable[[], Any]) -> float:
    found = []
    with torch.no_grad():
        for _ in range(5):
            first, last = _pair()
            torch.cuda.synchronize()
            first.record()
            for _ in range(NUM_QUEUED):
                call()
            last.record()
            torch.cuda.synchronize()
            found.append(first.elapsed_time(last) / NUM_QUEUED)
    return float(np.median(found))


def _pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _matmul_tflops() -> float:
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * SIDE**3 / _alone_ms({"matmul": lambda: a @ b})["matmul"] / 1e9


def _kernels(call: Callable[[], Any]) -> tuple[float, float]:
    """Kernels of one call, and the milliseconds in which one runs."""
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad(), profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(NUM_PROFILED):
            call()
        torch.cuda.synchronize()
    kernels = [
        each
        for each in found.events()
        if each.device_type == torch.autograd.DeviceType.CUDA and not each.name.startswith("Mem")
    ]
    total_us = sum(each.device_time for each in kernels)
    return len(kernels) / NUM_PROFILED, total_us / NUM_PROFILED / 1000


def _listed(value: Any) -> Sequence[torch.Tensor]:
    return value if isinstance(value, (list, tuple)) else (value,)


if __name__ == "__main__":
    if sys.argv[1] == "--only-compile":
        sys.exit(only_compile(*sys.argv[2:]))
    sys.exit(main(*sys.argv[1:]))
