"""A run that is to make one engine leaves the others to a later one."""

import pytest

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import ModelVersion

pytestmark = pytest.mark.usefixtures("forked_children")

KINDS = (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO)


def test_it_stops_once_one_is_proven_and_the_plan_has_all(
    worker: WorkerContext, version: ModelVersion
) -> None:
    first = build_model(version, Wanted(kinds=KINDS, is_first=True), worker)
    assert [record.outcome for record in first.records] == [BuildOutcome.PROVEN]
    (plan,) = worker.registry.build_plans(version.name, version.version)
    assert {planned.key.kind for planned in plan.planned} >= set(KINDS)
    again = build_model(version, Wanted(kinds=KINDS, is_first=True), worker)
    assert again.records == ()
    rest = build_model(version, Wanted(kinds=KINDS), worker)
    assert [record.outcome for record in rest.records] == [BuildOutcome.PROVEN]
    assert len(worker.registry.engines()) == 2
