"""A float32 graph in float64, for libraries that compute what a graph says: no importer's work.

Decisions stay in the master's own types, as in the importer's float64 (see `decisions`), and so
does what ONNX has no float64 for.
"""

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from compiler_worker.precision.decisions import deciding_outputs
from compiler_worker.precision.limits import check_limits
from compiler_worker.precision.policy import Standing, retypable
from compiler_worker.precision.typed import Rewriter
from services.contracts.errors import UnsupportedGraphError
from services.contracts.hardware.kinds import Precision


def doubled_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Type a float32 model for float64; inputs keep their types, outputs do not.

    Args:
        model: checked, its weights in memory; it is not changed.

    Raises:
        UnsupportedGraphError: control flow, or an op that is not of ai.onnx: trees decide inside.
    """
    doubled = ir.from_proto(model)
    if foreign := sorted({node.domain for node in doubled.graph if node.domain}):
        raise UnsupportedGraphError(f"ops of {foreign[0]} stay in their own types")
    check_limits(doubled, Precision.FP32)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(doubled)
    passes.ShapeInferencePass()(doubled)
    policy = _Doubling(doubled, deciding_outputs(model))
    Rewriter(doubled, policy, ir.DataType.DOUBLE, "fp64").retype()
    passes.RemoveUnusedNodesPass()(doubled)
    return ir.to_proto(doubled)


class _Doubling:
    """All that may be float64 is."""

    def __init__(self, model: ir.Model, own: frozenset[str]) -> None:
        graph = model.graph
        opset = model.opset_imports[""]
        made = (value for node in graph for value in node.outputs)
        values = (*graph.inputs, *graph.initializers.values(), *made)
        # Only positional values are bounded on their way, which a wider type makes needless.
        self.standings = {v: Standing.FULL for v in values if v.dtype is ir.DataType.FLOAT}
        self.narrowed = {
            node: retypable(node, opset, "tensor(double)", self.standings)
            for node in graph
            if not own.intersection(value.name or "" for value in node.outputs)
        }
