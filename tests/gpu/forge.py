"""The tiny model through the whole pipeline on this GPU: built, proven and published once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compiler_worker.building.pipeline import BuildReport, build_model
from compiler_worker.master.opened import open_master
from compiler_worker.master.source import OnnxFile
from compiler_worker.model_checks.import_verdict import judge_import
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.model.recipe import (
    InputRecipe,
    InputRole,
    OutputRecipe,
    RankingTask,
    Recipe,
)
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.engines.base import LoadSpec
from services.engines.device.device_probe import probe_device
from tests.conformance.tiny_model import VOCABULARY, draw_inputs, save_master, tiny_model
from tests.conformance.workshop import NUMBERED_BUCKETS
from tests.gpu.requests import MODEL

RECIPE = Recipe(
    kinds=(EngineKind.INDUCTOR,),
    precisions=(Precision.FP32, Precision.FP16),
    inputs={
        # Not 0, so that a buffer filled with anything else is noticed.
        "ids": InputRecipe(high=VOCABULARY, pad=1),
        "mask": InputRecipe(role=InputRole.MASK),
    },
    outputs={"hidden": OutputRecipe(valid_where="mask")},
    buckets=NUMBERED_BUCKETS,
    ranking=RankingTask(output="pooled", num_queries=8, top_k=5),
)


@dataclass(frozen=True, kw_only=True)
class Forge:
    """A store with the model, and the compiler that works on it."""

    worker: WorkerContext
    version: ModelVersion

    @property
    def registry(self) -> Registry:
        """The registry on the store."""
        return self.worker.registry

    @property
    def store_url(self) -> str:
        """Where the store is."""
        return self.worker.settings.store_url

    def build(self, *precisions: Precision) -> BuildReport:
        """Build, prove and publish for this device."""
        return build_model(self.version, Wanted(precisions=precisions), self.worker)

    def load_spec(self, engine: PublishedEngine) -> LoadSpec:
        """How a replica loads an engine of this store."""
        master = self.version.master
        return LoadSpec(
            manifest=engine.manifest,
            master=master,
            directory=self.registry.materialise_engine(engine),
            master_path=self.registry.materialise_master(master) / "model.onnx",
            device=probe_device(),
        )

    def copy(self, engine: PublishedEngine, target: Registry) -> None:
        """Publish an engine of this store in another one, as it is."""
        folder = self.registry.materialise_engine(engine)
        files: Mapping[str, Path] = {name: folder / name for name in engine.manifest.files}
        target.publish_engine(engine.manifest, files, engine.proof)


def open_forge(folder: Path) -> Forge:
    """A new store in an empty folder with one version of the model and no engine."""
    settings = CompilerSettings(
        store_url=str(folder / "store"),
        cache_dir=folder / "cache",
        benchmark_s=0.05,
        benchmark_iterations=10,
        verdict_time_limit_s=600,
    )
    registry = Registry(open_store(settings.store_url), settings.cache_dir)
    source, samples = folder / "source", folder / "samples.npz"
    source.mkdir()
    np.savez(samples, allow_pickle=False, **draw_inputs(32, 12))
    path = save_master(tiny_model(), source)
    master = open_master(OnnxFile(path=path), folder / "master", print)
    record = registry.publish_master(master)
    model_path = master.files["model.onnx"]
    judged = judge_import(
        (model_path, record), RECIPE, RECIPE.buckets, folder / "verdict", settings, print
    )
    assert judged is not None
    version = registry.add_model_version(
        name=MODEL,
        master=record,
        recipe=RECIPE,
        source="tiny.onnx",
        source_fingerprint="0",
        samples=samples,
        fallback_verdict=judged.verdict,
        fallback_answers=judged.answers,
    )
    return Forge(worker=WorkerContext(registry=registry, settings=settings), version=version)
