"""A master of an opset that ONNX Runtime does not know yet: built, and proven without it."""

from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper, parser

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.worker_context import WorkerContext
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ProofOutcome
from services.contracts.model.recipe import Recipe
from tests.faults.judged import normal
from tests.integration.compiler.test_trees import BUCKET, added

pytestmark = pytest.mark.usefixtures("forked_children")

# Celu and Einsum are two that opset 28 defines anew.
GRAPH = """<ir_version: 14, opset_import: ["" : 28]>
    g (float[batch, 8] x) => (float[batch, 4] y) {
        h = MatMul (x, w)  c = Celu (h)  y = Einsum <equation = "bi,io->bo"> (c, v) }"""


def model() -> onnx.ModelProto:
    made = parser.parse_model(GRAPH)
    weights = {"w": normal(8, 16), "v": normal(16, 4)}
    made.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    return made


def test_it_is_witnessed_by_onnxs_own_implementation(worker: WorkerContext, tmp_path: Path) -> None:
    kinds = (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO)
    version = added(
        model(),
        worker,
        tmp_path,
        Recipe(kinds=kinds, precisions=(Precision.FP32,), buckets=(BUCKET,)),
    )
    assert version.master.opset == 28
    report = build_model(version, Wanted(), worker)
    (engine,) = worker.registry.engines()
    assert engine.manifest.key.kind is EngineKind.OPENVINO
    assert engine.proof.outcome is ProofOutcome.PASSED
    assert "float64 import, torch" in engine.proof.reference
    assert f"witness onnx.reference {onnx.__version__} fp32: ONNX Runtime" in engine.proof.reference
    (skipped,) = report.plans[0].skipped
    assert skipped.reason == "opset 28 of ai.onnx: ONNX Runtime supports opsets up to 26"
