"""Why kinds of engines cannot take a graph, as far as that is known without running anything."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from compiler_worker.builders.select import builder_for
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import strings_among
from services.contracts.model.manifest import MasterRecord

if TYPE_CHECKING:
    import onnx


class GraphOps(NamedTuple):
    """What kinds and precisions need to know of a graph's ops.

    Attributes:
        foreign: the first op of another domain than ai.onnx, with its node; "" without any.
        has_products: whether one computes in narrow types: a product, convolution or recurrence.
    """

    foreign: str
    has_products: bool


def graph_refusal(
    kind: EngineKind,
    precision: Precision,
    master: MasterRecord,
    ops: Callable[[], GraphOps],
    import_refusal: Callable[[], str],
) -> str:
    """Why a kind cannot take a master in a precision, or "".

    Args:
        kind: of engines.
        precision: of the engine.
        master: its record.
        ops: the `ops_of_graph` of its graph; asked where they count, as is the other.
        import_refusal: why the importer cannot take it.
    """
    if kind is EngineKind.ONNXRUNTIME:
        return _new_opset(master.opset) or _not_narrowed(precision, ops)
    if strings := strings_among(master.inputs, master.outputs):
        return f"{strings} is strings (BYTES): kind {kind} computes with numbers alone"
    if not builder_for(kind).is_ai_onnx_only:
        return import_refusal()
    found = ops().foreign
    return f"{found}: kind {kind} supports only the ops of ai.onnx" if found else ""


def ops_of_graph(proto: "onnx.ModelProto") -> GraphOps:
    """Look through a graph, whose weights need not be there."""
    from compiler_worker.master import walk
    from compiler_worker.precision.policy import NARROW_OPS

    nodes = [node for node, _ in walk.nodes(proto)]
    foreign = ""
    if node := next((each for each in nodes if walk.domain_of(each.domain)), None):
        where = f" at node '{node.name}'" if node.name else ""
        foreign = f"{node.domain}::{node.op_type}{where}"
    return GraphOps(foreign, any(each.op_type in NARROW_OPS for each in nodes))


def _not_narrowed(precision: Precision, ops: Callable[[], GraphOps]) -> str:
    if precision is Precision.FP32 or ops().has_products or not ops().foreign:
        return ""
    return f"{ops().foreign} computes in fp32, and no op of the graph in {precision}"


def _new_opset(opset: int) -> str:
    from compiler_worker.master.admission import NEWEST_RUN_OPSET

    if opset <= NEWEST_RUN_OPSET:
        return ""
    return f"opset {opset} of ai.onnx: ONNX Runtime supports opsets up to {NEWEST_RUN_OPSET}"
