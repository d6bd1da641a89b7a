"""Task metrics of a recipe in real proofs: passed, failed in their own words, refused by name."""

import pytest

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.task_recipe import FunctionTask, Task, TopKTask

pytestmark = pytest.mark.usefixtures("forked_children")

ONLY_ORT = Wanted(kinds=(EngineKind.ONNXRUNTIME,))
ENTRY = "tests.integration.compiler.owner_metric:same_sign"
TOP1 = TopKTask(metric="top_k", output="pooled")


def built(worker: WorkerContext, version: ModelVersion, *tasks: Task) -> BuildRecord:
    recipe = version.recipe.model_copy(update={"tasks": tasks})
    asked = version.model_copy(update={"recipe": recipe})
    (record,) = build_model(asked, ONLY_ORT, worker).records
    return record


def test_tasks_that_pass_stand_in_the_proof(worker: WorkerContext, version: ModelVersion) -> None:
    own = FunctionTask(metric="function", entry=ENTRY, min_value=0.99)
    record = built(worker, version, TOP1, own)
    assert record.outcome is BuildOutcome.PROVEN
    assert record.proof is not None
    ranking, top1, function = record.proof.tasks
    assert ranking.name == "top5_overlap:pooled"
    assert (top1.name, top1.value) == ("top1_agreement:pooled", 1.0)
    assert top1.detail.startswith("real samples, 32 rows")
    assert (function.name, function.is_passed) == (ENTRY, True)
    # Engines that are proven without the tasks are no engines for those who name them.
    plain = build_model(version, ONLY_ORT, worker)
    assert [r.key.digest() for r in plain.records] != [record.key.digest()]


def test_a_task_below_its_bound_fails_the_proof(
    worker: WorkerContext, version: ModelVersion
) -> None:
    impossible = FunctionTask(metric="function", entry=ENTRY, min_value=1.5)
    record = built(worker, version, impossible)
    assert record.outcome is BuildOutcome.PROOF_FAILED
    assert f"task {ENTRY}: 1.0000 found, 1.5000 wanted" in record.reason
    assert worker.registry.engines() == []


def test_a_function_that_is_not_there_is_refused_by_name(
    worker: WorkerContext, version: ModelVersion
) -> None:
    absent = FunctionTask(metric="function", entry="no_such_package:score", min_value=0.0)
    record = built(worker, version, absent)
    assert record.outcome is BuildOutcome.FAILED
    assert "function 'no_such_package:score' cannot be imported" in record.reason
