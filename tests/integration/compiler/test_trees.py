"""What is no tensor program is a model all the same: trees, from the file to the proof."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from compiler_worker.building.pipeline import build_model
from compiler_worker.master.opened import open_master
from compiler_worker.master.source import OnnxFile
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.plans.plan_document import keep_plans
from compiler_worker.plans.refusals import Refusals
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion, ProofOutcome
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from tests.conformance.tiny_model import tiny_model
from tests.conformance.trees import classifier, regressor
from tests.integration.compiler.conftest import hurried

pytestmark = pytest.mark.usefixtures("forked_children")

KINDS = (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO, EngineKind.INDUCTOR)
FP32 = (Precision.FP32,)
BUCKET = Bucket(dims={"batch": DimRange(min=1, opt=8, max=32)})


def added(
    model: onnx.ModelProto, worker: WorkerContext, folder: Path, recipe: Recipe
) -> ModelVersion:
    """Publish a model as a version of `trees`."""
    source = folder / "source.onnx"
    onnx.save(model, source)
    master = open_master(OnnxFile(path=source), folder / "trees", lambda line: None)
    return worker.registry.add_model_version(
        name="trees",
        master=worker.registry.publish_master(master),
        recipe=recipe,
        source="source.onnx",
        source_fingerprint="0",
    )


def test_trees_are_built_and_proven_on_the_kind_that_takes_them(
    worker: WorkerContext, tmp_path: Path
) -> None:
    version = added(
        classifier(), worker, tmp_path, Recipe(kinds=KINDS, precisions=FP32, buckets=(BUCKET,))
    )
    report = build_model(version, Wanted(), worker)

    assert [(r.key.kind, r.outcome) for r in report.records] == [
        (EngineKind.ONNXRUNTIME, BuildOutcome.PROVEN)
    ]
    (engine,) = worker.registry.engines()
    proof = engine.proof
    assert proof.outcome is ProofOutcome.PASSED
    # An engine of ONNX Runtime is not compared with ONNX Runtime.
    assert proof.reference.startswith(f"onnx.reference {onnx.__version__} fp32; no float64 import")
    assert "ai.onnx.ml::" in proof.reference
    assert {check.output for check in proof.checks} == {s.name for s in version.master.outputs}
    assert proof.timings

    skipped = {each.kind: each.reason for each in report.plans[0].skipped}
    assert set(skipped) == {EngineKind.OPENVINO, EngineKind.INDUCTOR}
    assert "kind openvino supports only the ops of ai.onnx" in skipped[EngineKind.OPENVINO]
    assert "ai.onnx.ml::TreeEnsembleClassifier-3 at node" in skipped[EngineKind.INDUCTOR]
    (plan,) = worker.registry.build_plans("trees", version.version)
    assert {each.kind: each.reason for each in plan.skipped} == skipped


def test_trees_are_planned_in_fp32_alone(worker: WorkerContext, tmp_path: Path) -> None:
    """On CUDA, where ONNX Runtime has engines of fp16: no tree would be computed otherwise."""
    asked = (EngineKind.ONNXRUNTIME, Precision.FP16)
    trees = Refusals(added(classifier(), worker, tmp_path, Recipe()).master, worker)
    words = trees.reason(*asked)
    assert words.startswith("ai.onnx.ml::")
    assert words.endswith(" computes in fp32, and no op of the graph in fp16")
    assert trees.reason(EngineKind.ONNXRUNTIME, Precision.FP32) == ""
    products = Refusals(added(tiny_model(), worker, tmp_path, Recipe()).master, worker)
    assert products.reason(*asked) == ""


def test_what_the_importer_takes_is_skipped_by_nobody(
    worker: WorkerContext, tmp_path: Path
) -> None:
    recipe = Recipe(kinds=KINDS, precisions=FP32)
    version = added(tiny_model(), worker, tmp_path, recipe)
    (plan,) = keep_plans(version, Wanted(), worker)
    assert plan.skipped == ()
    assert {planned.key.kind for planned in plan.planned} == set(KINDS)
    # The importer is asked once for each master, not for each plan.
    imports = list((worker.settings.cache_dir / "imports").iterdir())
    assert [path.name.partition("-")[0] for path in imports] == [version.master.digest]
    before = imports[0].stat().st_ino
    keep_plans(version, Wanted(), worker)
    assert imports[0].stat().st_ino == before


def test_the_importer_runs_for_the_kinds_that_are_asked_for_alone(
    worker: WorkerContext, tmp_path: Path
) -> None:
    recipe = Recipe(kinds=KINDS, precisions=FP32, buckets=(BUCKET,))
    version = added(classifier(), worker, tmp_path, recipe)
    only = Wanted(kinds=(EngineKind.ONNXRUNTIME,))
    keep_plans(version, only, worker)
    assert not (worker.settings.cache_dir / "imports").exists()
    (whole,) = keep_plans(version, Wanted(), worker)
    assert EngineKind.INDUCTOR in {each.kind for each in whole.skipped}
    # A verdict that is known stays in the plan, which is of every kind.
    (again,) = keep_plans(version, only, worker)
    assert again.is_equal_plan(whole)


def test_a_master_that_ends_the_importer_is_left_to_the_build(
    worker: WorkerContext, tmp_path: Path
) -> None:
    """A child that gives no verdict refuses nothing, and nothing is kept of it."""
    recipe = Recipe(kinds=(EngineKind.INDUCTOR,), precisions=FP32, buckets=(BUCKET,))
    version = added(regressor(), worker, tmp_path, recipe)
    with hurried(worker, build_time_limit_s=0.01) as hasty:
        (plan,) = keep_plans(version, Wanted(), hasty)
    assert [planned.key.kind for planned in plan.planned] == [EngineKind.INDUCTOR]
    assert not (worker.settings.cache_dir / "imports").exists()
    (plan,) = keep_plans(version, Wanted(), worker)
    assert plan.planned == ()
    assert "ai.onnx.ml::Scaler-3 at node 'scaler'" in plan.skipped[0].reason
