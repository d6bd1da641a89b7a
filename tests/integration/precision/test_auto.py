"""`precisions: auto` through the real pipeline: what the processor has instructions for."""

from dataclasses import replace
from pathlib import Path

import pytest

from compiler_worker.building.pipeline import build_model
from compiler_worker.devices import local_devices
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.worker_context import WorkerContext
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.hardware.facts import Platform
from services.contracts.hardware.instructions import missing_instructions
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Recipe
from services.contracts.selection.selection import select

pytestmark = pytest.mark.usefixtures("forked_children")

KINDS = (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO)
BUCKETS = [{"dims": {"batch": {"min": 1, "opt": 2, "max": 4}}}]


def added(worker: WorkerContext, models: Path, **recipe: object) -> ModelVersion:
    """A convolutional net of which the recipe says nothing of precisions."""
    asked = Recipe.model_validate({"kinds": KINDS, "buckets": BUCKETS, **recipe})
    options = AddOptions(recipe=asked, folder=models)
    source = str(models / "conv.onnx")
    return add_model(worker.registry, "conv", source, options, Steps(is_quiet=True))


def built(worker: WorkerContext, version: ModelVersion) -> set[tuple[EngineKind, Precision]]:
    """Builds and proves everything, and says what there is."""
    records = build_model(version, Wanted(), worker).records
    assert {each.outcome for each in records} == {BuildOutcome.PROVEN}, [r.reason for r in records]
    return {(each.key.kind, each.key.precision) for each in records}


def test_this_processor_gets_what_it_has_instructions_for(
    worker: WorkerContext, models: Path
) -> None:
    device = worker.devices[Platform.CPU]
    reduced = {
        (EngineKind.OPENVINO, Precision.BF16): Precision.BF16,
        (EngineKind.OPENVINO, Precision.INT8): Precision.INT8,
        (EngineKind.ONNXRUNTIME, Precision.INT8): Precision.INT8,
    }
    expected = {
        what
        for what, precision in reduced.items()
        if not missing_instructions(device.parsed_generation, precision)
    }
    version = added(worker, models, calibration={"path": "conv.npz"})
    assert built(worker, version) == {(kind, Precision.FP32) for kind in KINDS} | expected
    engines = worker.registry.engines(version.master.digest)
    ungated = version.model_copy(
        update={"recipe": version.recipe.model_copy(update={"must_beat_fallback": False})}
    )
    # A replica may serve with each of them.
    selection = select(engines, device, version=ungated)
    assert selection.rejections == ()


def test_without_instructions_it_is_fp32_alone(worker: WorkerContext, models: Path) -> None:
    simulated = replace(worker, devices=local_devices("cpu-x86_64-v3"))
    version = added(simulated, models, calibration={"path": "conv.npz"})
    assert built(simulated, version) == {(kind, Precision.FP32) for kind in KINDS}
