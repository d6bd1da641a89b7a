"""Engines of every kind that can be built here, made in this process and proven by nothing."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from compiler_worker.builders.base import BuildSpec
from compiler_worker.builders.select import builder_for
from compiler_worker.inputs.calibration_draws import calibration_draws
from compiler_worker.master.samples import read_arrays
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ModelVersion
from services.engines.base import LoadSpec
from services.engines.device.device_probe import probe_device
from services.engines.loader import engine_class
from tests.conformance.workshop import manifest_of
from tests.quick_worker import wanted_keys

Call = Callable[[dict[str, Array]], object]


def unproven(
    worker: WorkerContext, version: ModelVersion, wanted: Wanted, num_threads: int
) -> dict[str, Call]:
    """The call of each engine by kind and precision; prints what builds and loads took."""
    calls: dict[str, Call] = {}
    for key in wanted_keys(version, wanted, worker):
        name = f"{key.kind} {key.precision}"
        folder = worker.settings.cache_dir / "unproven" / key.digest()
        began_s = time.monotonic()
        spec = built(worker, version, key, folder, num_threads)
        built_s = time.monotonic()
        engine = engine_class(key.kind).load(spec)
        took = f"built in {built_s - began_s:.1f} s, loaded in {time.monotonic() - built_s:.2f} s"
        size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        print(f"  {name}: {took}, {size:.1f} MB", flush=True)
        calls[name] = engine.run
    return calls


def built(
    worker: WorkerContext, version: ModelVersion, key: BuildKey, folder: Path, num_threads: int
) -> LoadSpec:
    """An engine's files.

    Args:
        worker: a compiler.
        version: of the model.
        key: of the engine.
        folder: takes them; what is there is deleted.
        num_threads: of the engine that is loaded from them.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    master_path = worker.registry.materialise_master(version.master) / "model.onnx"
    calibration = worker.registry.plain_samples(version.calibration, folder)
    drawn = []
    if calibration and version.traffic:
        sampled = read_arrays(calibration)
        drawn = calibration_draws(version.master, version.recipe, key.buckets, sampled)
    plan = BuildSpec(
        key=key,
        master=version.master,
        master_path=master_path,
        calibration_path=calibration,
        drawn=drawn,
    )
    output = builder_for(key.kind).build(plan, folder, lambda _: None)
    return LoadSpec(
        manifest=manifest_of(plan, output),
        master=version.master,
        directory=folder,
        master_path=master_path,
        device=probe_device(),
        num_threads=num_threads,
    )
