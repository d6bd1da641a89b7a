"""Exports a PyTorch source to ONNX, then builds, proves and publishes its engine on this GPU.

    python -m tests.benchmarks.gpu.engine_build STORE CACHE NAME [PRECISION...] [--loose|--autotune]

The compiler's own pipeline does it, for engines of kind inductor, in fp16 by default; fp8 is
calibrated with 64 rows of the source's inputs. `--loose` proves fp8, and columns of fp16, at
distances that a default recipe refuses, to time it all the same; `--autotune` has Inductor time
several ways of each product. Beside the store it writes what the source answers in float32, for
`first_answer`.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.export import Dim

from compiler_worker.building.pipeline import build_model
from compiler_worker.master.opened import open_master
from compiler_worker.master.source import OnnxFile
from compiler_worker.model_checks.accepted_blindness import with_accepted_blindness
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.hardware.kinds import Precision
from services.contracts.model.calibration_recipe import Calibration
from services.contracts.model.kind_options import InductorOptions
from services.contracts.model.recipe import OutputRecipe, Tolerance
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.benchmarks.gpu.sources import SOURCES, Source

NUM_CALIBRATING = 64
LOOSE = {
    Precision.FP8: Tolerance(rel_l2=0.6, max_abs=0.9, cosine_distance=0.2, column=2, gain=0.3),
    # Of images with seeded weights the logits hardly differ.
    Precision.FP16: Tolerance(rel_l2=5e-3, max_abs=1e-2, cosine_distance=1e-5, column=2, gain=0.3),
}
# What bounds as wide as those of fp16 cannot see.
BLIND = {
    Precision.FP16: (
        "shifted by one spread",
        "a column shifted by a tenth of its spread",
        "shifted by length",
    )
}
_NUM_TRACED = 3


def main(store: str, cache: str, name: str, *words: str) -> int:
    """Build; the exit code is 0 when all engines are proven."""
    folder = Path(store)
    folder.mkdir(parents=True)
    source = SOURCES[name]
    registry = Registry(open_store(str(folder / "store")), Path(cache))
    path = folder / f"{name}.onnx"
    export(source, path)
    keep_answers(source, folder / "answers.npz")
    master = registry.publish_master(open_master(OnnxFile(path=path), folder / "master", print))
    recipe = source.recipe
    calibration = None
    if precisions := tuple(Precision(each) for each in words if not each.startswith("-")):
        tolerances = LOOSE if "--loose" in words else {}
        recipe = recipe.model_copy(update={"precisions": precisions, "tolerances": tolerances})
        if tolerances:
            blind = {each.name: OutputRecipe(accept_blind=BLIND) for each in master.outputs}
            recipe = recipe.model_copy(update={"outputs": blind})
    if "--autotune" in words:
        recipe = recipe.model_copy(update={"inductor": InductorOptions(max_autotune=True)})
    if Precision.FP8 in precisions:
        calibration = folder / "rows.npz"
        np.savez(calibration, allow_pickle=False, **source.inputs(NUM_CALIBRATING))
        given = {"calibration": Calibration(path=calibration.name)}
        recipe = recipe.model_copy(update=given)
        recipe = with_accepted_blindness(recipe, master, has_calibration=True)
    version = registry.add_model_version(
        name=name,
        master=master,
        recipe=recipe,
        source=path.name,
        source_fingerprint="0",
        calibration=calibration,
    )
    settings = CompilerSettings(
        store_url=str(folder / "store"),
        cache_dir=Path(cache),
        benchmark_s=0.05,
        benchmark_fallback=False,
    )
    report = build_model(version, Wanted(), WorkerContext(registry=registry, settings=settings))
    for record in report.records:
        print(name, record.outcome, record.reason)
    for engine in registry.engines(version.master.digest):
        manifest = engine.manifest
        print(f"{name}: {manifest.key.precision} built in {manifest.build_duration_s:.1f} s")
        for check in engine.proof.checks:
            print(f"{name}: {check}")
        print(f"{name}: proven in {engine.proof.duration_s:.1f} s, samples {engine.proof.samples}")
        print(f"{name}: {engine.manifest.num_bytes / 1e6:.1f} MB without the master's weights")
    return 0 if {record.outcome.value for record in report.records} == {"proven"} else 1


def export(source: Source, path: Path) -> None:
    """Write the source as ONNX of opset 23 with a dynamic batch."""
    arrays = source.inputs(_NUM_TRACED)
    batch = Dim("batch", min=1, max=256)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            source.make(),
            tuple(torch.from_numpy(array) for array in arrays.values()),
            path,
            dynamo=True,
            opset_version=23,
            input_names=list(arrays),
            dynamic_shapes=tuple({0: batch} for _ in arrays),
            external_data=False,
            verbose=False,
        )


def keep_answers(source: Source, path: Path) -> None:
    """Save inputs of the smallest batch and what the source answers in float32."""
    inputs = source.inputs(source.batches[0])
    with torch.no_grad():
        answer = source.make()(*(torch.from_numpy(array) for array in inputs.values()))
    np.savez(path, allow_pickle=False, answer=answer.numpy(), **inputs)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
