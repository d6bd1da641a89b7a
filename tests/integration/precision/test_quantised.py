"""Quantised engines through the real pipeline: built, proven, and bound to their samples."""

import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from onnx import load as load_onnx

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.worker_context import WorkerContext
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.errors import InvalidRecipeError
from services.contracts.hardware.facts import Platform
from services.contracts.hardware.instructions import missing_instructions
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Recipe
from services.engines.device.device_probe import probe_device
from tests.integration.precision.small_nets import conv_inputs
from tests.quick_worker import wanted_keys

pytestmark = pytest.mark.usefixtures("forked_children")

KINDS = (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO)
# OpenVINO asks oneDNN for kernels by what the processor has. Told by this switch to use less,
# oneDNN has none for weights of eight bits; on a processor with AVX2 alone the two agree.
IS_ONEDNN_LIMITED = os.environ.get("ONEDNN_MAX_CPU_ISA", "").startswith("AVX2")
BUCKETS = {
    "conv": {"batch": {"min": 1, "opt": 2, "max": 4}},
    "attention": {
        "batch": {"min": 1, "opt": 2, "max": 4},
        "sequence": {"min": 1, "opt": 8, "max": 12},
    },
}
INPUTS = {"conv": {}, "attention": {"ids": {"high": 64}, "mask": {"role": "mask"}}}
OUTPUTS = {"conv": {}, "attention": {"hidden": {"valid_where": "mask"}}}


def recipe(
    name: str,
    *precisions: Precision,
    calibration: str = "",
    kinds: tuple[EngineKind, ...] = KINDS,
) -> Recipe:
    return Recipe.model_validate(
        {
            "kinds": kinds,
            "precisions": precisions,
            "buckets": [{"dims": BUCKETS[name]}],
            "inputs": INPUTS[name],
            "outputs": OUTPUTS[name],
            "calibration": {"path": calibration or f"{name}.npz"},
        }
    )


def add(worker: WorkerContext, models: Path, name: str, wanted: Recipe) -> ModelVersion:
    options = AddOptions(recipe=wanted, folder=models)
    return add_model(
        worker.registry, name, str(models / f"{name}.onnx"), options, Steps(is_quiet=True)
    )


def keys(worker: WorkerContext, version: ModelVersion) -> list[BuildKey]:
    return wanted_keys(version, Wanted(), worker)


@pytest.mark.parametrize("name", ["conv", pytest.param("attention", marks=pytest.mark.slow)])
def test_quantised_engines_are_built_and_proven(
    worker: WorkerContext, models: Path, name: str
) -> None:
    wanted = recipe(name, Precision.INT8, Precision.INT8_WEIGHT_ONLY)
    version = add(worker, models, name, wanted)
    report = build_model(version, Wanted(), worker)
    found = {(record.key.kind, record.key.precision): record for record in report.records}
    if IS_ONEDNN_LIMITED:
        del found[EngineKind.OPENVINO, Precision.INT8_WEIGHT_ONLY]
    assert {each.outcome for each in found.values()} == {BuildOutcome.PROVEN}, [
        each.reason for each in found.values()
    ]
    assert {(kind, Precision.INT8) for kind in KINDS} <= set(found)
    for record in found.values():
        engine = worker.registry.engine(record.key.digest())
        graph = load_onnx(worker.registry.materialise_engine(engine) / "typed.onnx").graph
        assert [entry.name for entry in graph.input] == [s.name for s in version.master.inputs]
        assert [entry.name for entry in graph.output] == [s.name for s in version.master.outputs]
        assert "DequantizeLinear" in {node.op_type for node in graph.node}
        # Rounded, not the master in disguise: fp32 would be a thousand times nearer.
        assert max(check.rel_l2 for check in engine.proof.checks) > 1e-4


@pytest.mark.skipif(
    bool(missing_instructions(probe_device(Platform.CPU).parsed_generation, Precision.INT8)),
    reason="for hosts with VNNI",
)
def test_inductor_calls_kernels_for_eight_bits(worker: WorkerContext, models: Path) -> None:
    wanted = recipe("attention", Precision.INT8, kinds=(EngineKind.INDUCTOR,))
    version = add(worker, models, "attention", wanted)
    (record,) = build_model(version, Wanted(), worker).records
    assert record.outcome is BuildOutcome.PROVEN, record.reason
    engine = worker.registry.engine(record.key.digest())
    assert max(check.rel_l2 for check in engine.proof.checks) > 1e-4
    package = worker.registry.materialise_engine(engine) / "engine.pt2"
    with zipfile.ZipFile(package) as files:
        (code,) = (
            files.read(name).decode() for name in files.namelist() if name.endswith("wrapper.cpp")
        )
    # Queries, keys and values in one, and the three other products; none is left in floats.
    assert len(re.findall(r"aoti_torch_cpu__qlinear_pointwise\w*\(", code)) == 4
    assert not re.search(r"aoti_torch_cpu\w*(mm|linear)_out|cpu_mm|mkldnn__linear", code)


def test_both_kinds_run_one_graph_that_is_calibrated_once(
    worker: WorkerContext, models: Path
) -> None:
    version = add(worker, models, "conv", recipe("conv", Precision.INT8))
    report = build_model(version, Wanted(), worker)
    engines = [worker.registry.engine(record.key.digest()) for record in report.records]
    graphs = {engine.manifest.files["typed.onnx"].sha256 for engine in engines}
    assert len(engines) == len(KINDS)
    assert len(graphs) == 1
    assert len(list((worker.settings.cache_dir / "typed").glob("*.onnx"))) == 1


def test_another_calibration_set_is_another_engine_and_the_same_one_is_not(
    worker: WorkerContext, models: Path
) -> None:
    first = add(worker, models, "conv", recipe("conv", Precision.FP32, Precision.INT8))
    np.savez_compressed(models / "renamed.npz", allow_pickle=False, **conv_inputs(48))
    np.savez(models / "other.npz", allow_pickle=False, **conv_inputs(48, seed=4))
    wanted = (Precision.FP32, Precision.INT8)
    same, other = (
        add(worker, models, "conv", recipe("conv", *wanted, calibration=file))
        for file in ("renamed.npz", "other.npz")
    )
    assert keys(worker, first) == keys(worker, same)
    changed = [
        (old.precision, new.precision)
        for old, new in zip(keys(worker, first), keys(worker, other), strict=True)
        if old != new
    ]
    assert changed == [(Precision.INT8, Precision.INT8)] * len(KINDS)


def test_a_calibration_set_that_does_not_fit_is_refused_before_there_is_a_version(
    worker: WorkerContext, models: Path
) -> None:
    np.savez(models / "broken.npz", allow_pickle=False, image=np.zeros((48, 3, 16, 9), np.float32))
    with pytest.raises(InvalidRecipeError, match=r"broken\.npz.*column 'image'.*16, 16"):
        add(worker, models, "conv", recipe("conv", Precision.INT8, calibration="broken.npz"))
    assert worker.registry.model_names() == []


def test_int8_without_a_calibration_set_is_refused_with_the_fix(
    worker: WorkerContext, models: Path
) -> None:
    wanted = recipe("conv", Precision.INT8).model_copy(update={"calibration": None})
    with pytest.raises(InvalidRecipeError, match=r"precision int8: .*calibration: \{path: FILE\}"):
        add(worker, models, "conv", wanted)
    assert worker.registry.model_names() == []
