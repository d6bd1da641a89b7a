"""A small model in a local store, and a compiler that works on it with real children."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiler_worker.master.opened import open_master
from compiler_worker.master.source import OnnxFile
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.hardware.kinds import Precision
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import (
    Bucket,
    DimRange,
    InputRecipe,
    InputRole,
    OutputRecipe,
    RankingTask,
    Recipe,
)
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.conformance.tiny_model import VOCABULARY, draw_inputs, save_master, tiny_model
from tests.process_server import forked_children
from tests.quick_worker import quick_settings

__all__ = ["forked_children"]  # a fixture

RECIPE = Recipe(
    # The kinds are what differs in these tests.
    precisions=(Precision.FP32,),
    inputs={
        "ids": InputRecipe(high=VOCABULARY),
        "mask": InputRecipe(role=InputRole.MASK),
    },
    outputs={"hidden": OutputRecipe(valid_where="mask")},
    buckets=(
        Bucket(
            dims={
                "batch": DimRange(min=1, opt=2, max=4),
                "sequence": DimRange(min=1, opt=8, max=16),
            }
        ),
    ),
    ranking=RankingTask(output="pooled", num_queries=8, top_k=5),
)


@pytest.fixture
def settings(tmp_path: Path) -> CompilerSettings:
    return quick_settings(tmp_path)


@pytest.fixture
def worker(settings: CompilerSettings) -> WorkerContext:
    registry = Registry(open_store(settings.store_url), settings.cache_dir)
    return WorkerContext(registry=registry, settings=settings)


@pytest.fixture
def version(worker: WorkerContext, tmp_path: Path) -> ModelVersion:
    """The tiny model, published as `tiny` with samples for its ranking task."""
    source = tmp_path / "source"
    source.mkdir()
    path = save_master(tiny_model(), source)
    samples = source / "samples.npz"
    np.savez(samples, allow_pickle=False, **draw_inputs(32, 12))
    master = open_master(OnnxFile(path=path), tmp_path / "master", lambda line: None)
    return worker.registry.add_model_version(
        name="tiny",
        master=worker.registry.publish_master(master),
        recipe=RECIPE,
        source="tiny.onnx",
        source_fingerprint="0",
        samples=samples,
    )


def with_settings(worker: WorkerContext, **changed: object) -> WorkerContext:
    """The same worker with other settings."""
    settings = worker.settings.model_copy(update=changed)
    return replace(worker, settings=settings)


@contextmanager
def hurried(worker: WorkerContext, **limits: float) -> Iterator[WorkerContext]:
    """The same worker with limits that no child can keep: each imports torch itself."""
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("SMELT_TESTS_PROCESS_SERVER", raising=False)
        yield with_settings(worker, **limits)
