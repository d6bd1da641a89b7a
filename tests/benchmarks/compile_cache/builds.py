"""How long a build takes on a new machine, with and without the caches in the store.

    python -m tests.benchmarks.compile_cache.builds [--layers 2] [--rounds 2]

A machine is a cache folder of its own; all share one store. Each round builds on new machines:
one key without any cache, the same key again with what that build left in the store, and a
sibling (the same architecture, other weights) with and without. Seconds are of the whole step
(fetch, build in its child, store) by the clock, and of the processor time of the child with all
compilers that it starts, which says the same on a busy machine.
"""

import argparse
import os
import platform
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.export import Dim

from compiler_worker.builders.select import builder_for
from compiler_worker.builders.typed_graphs import interface_inputs
from compiler_worker.building.attempt import Attempt
from compiler_worker.building.pipeline import build_in_child
from compiler_worker.master.opened import open_master
from compiler_worker.master.source import OnnxFile
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.cli.demo.minilm import recipe, sentence_embedder
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.quick_worker import wanted_keys

NUM_THREADS = 2


@dataclass(frozen=True)
class Step:
    """One build: what it was, and its seconds."""

    what: str
    caches: str
    total_s: float
    processor_s: float
    num_kept: int


def export(folder: Path, num_layers: int, seed: int) -> Path:
    """MiniLM's first layers as ONNX; a seed other than 0 changes every weight."""
    source = sentence_embedder()
    for module in source.module.modules():
        if hasattr(module, "layer") and isinstance(module.layer, torch.nn.ModuleList):
            module.layer = module.layer[:num_layers]
    if seed:
        torch.manual_seed(seed)
        with torch.no_grad():
            for weight in source.module.parameters():
                weight.add_(torch.randn_like(weight) * 0.01)
    target = folder / f"seed{seed}.onnx"
    dims = {0: Dim("batch", min=1, max=32), 1: Dim("sequence", min=1, max=256)}
    torch.onnx.export(
        source.module.eval(),
        tuple(source.example_inputs.values()),
        str(target),
        dynamo=True,
        opset_version=23,
        external_data=False,
        input_names=["input_ids", "attention_mask"],
        output_names=["sentence_embedding"],
        dynamic_shapes=[dims, dims],
        verbose=False,
    )
    assert len(interface_inputs(target)) == 2
    return target


def children_s() -> float:
    """Processor seconds of all processes that ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Bench:
    """One store, and as many machines as are asked for."""

    def __init__(self, folder: Path, num_layers: int) -> None:
        self._folder = folder
        self._num_machines = 0
        self._versions = {
            name: self._publish(name, export(folder, num_layers, seed))
            for name, seed in (("model", 0), ("sibling", 7))
        }

    def step(self, name: str, what: str, store: str, caches: str) -> Step:
        """Build a model's inductor engine on a machine that was never used."""
        # Torch sets it when it is first used, and children would all compile in one place.
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
        worker = self._machine(store, is_shared=caches != "none")
        version = self._versions[name]
        wanted = Wanted(kinds=(EngineKind.INDUCTOR,), precisions=(Precision.FP32,))
        (key, *_) = wanted_keys(version, wanted, worker)
        scope = builder_for(key.kind).cache_scope(key)
        assert scope is not None
        # Into the worker's cache: its own store has the compilers' caches alone.
        models = Registry(open_store(self._store("models")), worker.settings.cache_dir)
        models.materialise_master(version.master)
        with worker.work_folder(key) as folder:
            started, used_s = time.monotonic(), children_s()
            build_in_child(Attempt(key, worker), version, worker, folder)
            total_s = time.monotonic() - started
        _, kept = worker.registry.compile_cache(scope)
        num_kept = len(kept.files) if kept else 0
        return Step(what, caches, total_s, children_s() - used_s, num_kept)

    def _machine(self, store: str, *, is_shared: bool) -> WorkerContext:
        self._num_machines += 1
        cache = self._folder / f"machine{self._num_machines}"
        settings = CompilerSettings(
            store_url=self._store(store),
            cache_dir=cache,
            num_threads=NUM_THREADS,
            is_compile_cache_shared=is_shared,
        )
        registry = Registry(open_store(settings.store_url), cache)
        return WorkerContext(registry=registry, settings=settings)

    def _store(self, name: str) -> str:
        return str(self._folder / f"store-{name}")

    def _publish(self, name: str, path: Path) -> ModelVersion:
        registry = Registry(open_store(self._store("models")), self._folder / "masters")
        asked: Recipe = recipe().model_copy(update={"ranking": None})
        return registry.add_model_version(
            name=name,
            master=registry.publish_master(
                open_master(OnnxFile(path=path), self._folder / name, lambda line: None)
            ),
            recipe=asked,
            source=path.name,
            source_fingerprint=name,
        )


def measure(bench: Bench, number: int) -> list[Step]:
    """One round, in an empty store of caches."""
    store = f"caches{number}"
    return [
        bench.step("model", "first build of a key", store, "none"),
        bench.step("model", "first build of a key", store, "empty"),
        bench.step("model", "the same key, a new machine", store, "filled"),
        bench.step("sibling", "a sibling, a new machine", store, "none"),
        bench.step("sibling", "a sibling, a new machine", store, "filled"),
    ]


def main() -> int:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {NUM_THREADS} threads")
    print("| round | build | caches | clock, s | processor, s | objects kept |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="smelt-caches-") as folder:
        bench = Bench(Path(folder), asked.layers)
        for number in range(1, asked.rounds + 1):
            for each in measure(bench, number):
                seconds = (f"{each.total_s:.1f}", f"{each.processor_s:.1f}")
                row = (number, each.what, each.caches, *seconds, each.num_kept)
                print("|", " | ".join(str(cell) for cell in row), "|", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
