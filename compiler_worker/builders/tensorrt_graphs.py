"""Graph files for TensorRT's parser, which reads from disk so that weights may be external."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from compiler_worker.builders.base import BuildSpec
from compiler_worker.builders.quantiser import quantiser_reason
from compiler_worker.builders.typed_graphs import planned_graph
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.instructions import missing_instructions
from services.contracts.hardware.kinds import Precision

if TYPE_CHECKING:
    import onnx

# Ops that ONNX itself defines by simpler ones, and that TensorRT takes in some forms only.
_LOWERABLE = ("Attention", "RMSNormalization", "RotaryEmbedding")
# Dedicated attention kernels exist in half precision only. In fp32 TensorRT refuses the op,
# or crashes on it, so there it is never tried.
_LOWERED_IN_FP32 = ("Attention",)


def precision_reason(generation: Generation, precision: Precision) -> str:
    """Why TensorRT cannot or should not build a precision for a generation, or ""."""
    if precision is Precision.FP8 and (reason := missing_instructions(generation, precision)):
        return reason
    if precision is Precision.INT8_WEIGHT_ONLY:
        return "TensorRT folds int8 weights back into floats: use fp16, bf16 or int8"
    return quantiser_reason(precision)


def graph_file(plan: BuildSpec, workspace: Path) -> Path:
    """The typed graph as a file: in fp32 the master itself, unless it holds an Attention."""
    if plan.key.precision is not Precision.FP32:
        typed = planned_graph(plan)
        path = _saved(typed, workspace / "typed.onnx")
        # What is not quantised is fp32, an attention among it.
        is_lowered = plan.key.precision.is_quantised and has_any(path, _LOWERED_IN_FP32)
        return lowered_file(path, workspace, _LOWERED_IN_FP32) if is_lowered else path
    if has_any(plan.master_path, _LOWERED_IN_FP32):
        return lowered_file(plan.master_path, workspace, _LOWERED_IN_FP32)
    return plan.master_path


def has_any(graph: Path, op_types: Collection[str] = _LOWERABLE) -> bool:
    """Whether `lowered_file` would change the graph."""
    import onnx

    model = onnx.load(graph, load_external_data=False)
    return any(node.op_type in op_types for node in model.graph.node)


def lowered_file(graph: Path, workspace: Path, op_types: Collection[str] = _LOWERABLE) -> Path:
    """A copy of the graph in which each such op is replaced by the ops that define it.

    Args:
        graph: the ONNX file.
        workspace: where the copy is written.
        op_types: ops of ai.onnx to replace; their schemas define them as functions.
    """
    import onnx
    from onnx import inliner

    names = [("", name) for name in op_types]
    model = inliner.inline_selected_functions(onnx.load(graph), names, inline_schema_functions=True)
    return _saved(model, workspace / f"{graph.stem}-lowered.onnx")


def _saved(model: "onnx.ModelProto", path: Path) -> Path:
    import onnx

    # A protobuf file ends at 2 GiB; the parser finds weights that lie beside it.
    onnx.save(model, path, save_as_external_data=True, location=f"{path.stem}.bin")
    return path
