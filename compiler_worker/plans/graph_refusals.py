"""Why kinds of engines cannot take a graph, as far as that is known without running anything."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from compiler_worker.builders.select import builder_for
from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.tensors import strings_among
from services.contracts.model.manifest import MasterRecord

if TYPE_CHECKING:
    import onnx


def graph_refusal(
    kind: EngineKind,
    master: MasterRecord,
    foreign: Callable[[], str],
    import_refusal: Callable[[], str],
) -> str:
    """Why a kind cannot take a master, or "".

    Args:
        kind: of engines.
        master: its record.
        foreign: the `foreign_op` of its graph; asked where it counts, as is the other.
        import_refusal: why the importer cannot take it.
    """
    if kind is EngineKind.ONNXRUNTIME:
        return _new_opset(master.opset)
    if strings := strings_among(master.inputs, master.outputs):
        return f"{strings} is strings (BYTES): kind {kind} computes with numbers alone"
    if not builder_for(kind).is_ai_onnx_only:
        return import_refusal()
    found = foreign()
    return f"{found}: kind {kind} knows the ops of ai.onnx alone" if found else ""


def foreign_op(proto: "onnx.ModelProto") -> str:
    """The first op of another domain than ai.onnx, with its node; "" without any."""
    from compiler_worker.master import walk

    found = (node for node, _ in walk.nodes(proto) if walk.domain_of(node.domain))
    node = next(found, None)
    if node is None:
        return ""
    return f"{node.domain}::{node.op_type}" + (f" at node '{node.name}'" if node.name else "")


def _new_opset(opset: int) -> str:
    from compiler_worker.master.admission import NEWEST_RUN_OPSET

    if opset <= NEWEST_RUN_OPSET:
        return ""
    return f"opset {opset} of ai.onnx: ONNX Runtime knows opsets up to {NEWEST_RUN_OPSET}"
