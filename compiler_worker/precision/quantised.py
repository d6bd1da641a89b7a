"""Weights and activations in eight bits, as QuantizeLinear and DequantizeLinear nodes.

NNCF decides and calibrates. On a sentence encoder and real sentences its graph was 1e-2 from
float64 (1 - cosine), that of onnxruntime.quantization (static) 1.2e-1 and up to three times
slower: it neither moves outliers from activations into weights nor corrects biases.
nvidia-modelopt 0.47 is not among the candidates: its ONNX half pins onnx 1.21, ONNX Runtime 1.24
for GPUs and CuPy, which neither run on a worker without a GPU nor beside what is used here. What
NNCF writes is changed in two ways that make it one graph for every kind of engine: TensorRT
takes no zero point but zero, in INT8, so unsigned scales become signed ones; and
`output_dtype` is taken out, which repeats the zero point's type and which ONNX Runtime
leaves as it is when it changes the zero point's.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from compiler_worker.precision.limits import check_limits
from services.contracts.errors import BuildError, UnsupportedGraphError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array

# A fused attention computes its two products in floats on every kind, so rounding what enters
# it costs accuracy and saves nothing. A table of embeddings is read by rows: ONNX Runtime would
# bring the whole of it back to floats in every call.
_LEFT_ALONE = ("Attention", "Gather")
_TRANSFORMER_OPS = frozenset({"Attention", "LayerNormalization", "RMSNormalization"})
_QUANTISING = ("QuantizeLinear", "DequantizeLinear")
# More change no scale: NNCF's own default.
_MAX_FEEDS = 300
_UNSIGNED_TO_SIGNED = np.float32(255 / 127)


def quantised_model(
    model: onnx.ModelProto, precision: Precision, feeds: Sequence[dict[str, Array]]
) -> onnx.ModelProto:
    """Quantise a float32 model for int8 or fp8; inputs and outputs keep their types.

    Args:
        model: checked, its weights in memory; it is not changed.
        precision: int8 or fp8.
        feeds: calibration inputs by name, of any shape that the model takes, each for one run.

    Raises:
        UnsupportedGraphError: control flow, an old opset, a graph that is quantised already, or
            nothing that can be.
        BuildError: the model cannot be run on a feed, or NNCF failed; its message is included.
    """
    check_limits(ir.from_proto(model), precision)
    if owned := sorted({*_QUANTISING} & {node.op_type for node in model.graph.node}):
        raise UnsupportedGraphError(
            f"the master is quantised already (it holds {', '.join(owned)}), with scales that "
            "are its owner's: build it in fp32"
        )
    found = _quantised(model, precision, feeds[:_MAX_FEEDS])
    if not _has_rounded_weights(found.graph):
        raise UnsupportedGraphError(
            f"no product of the graph can be quantised to {precision}: it has no MatMul, Gemm or "
            "Conv with constant weights; build it in fp32 or bf16"
        )
    _make_portable(found.graph)
    onnx.checker.check_model(found)
    return found


def _quantised(
    model: onnx.ModelProto, precision: Precision, feeds: Sequence[dict[str, Array]]
) -> onnx.ModelProto:
    nncf = _nncf()
    is_transformer = bool({node.op_type for node in model.graph.node} & _TRANSFORMER_OPS)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    # Types of inner values of an exporter may be stale or missing; NNCF relies on them.
    copy = onnx.shape_inference.infer_shapes(copy)
    try:
        found: onnx.ModelProto = nncf.quantize(
            copy,
            nncf.Dataset(feeds),
            subset_size=len(feeds),
            target_device=nncf.TargetDevice.CPU,
            model_type=nncf.ModelType.TRANSFORMER if is_transformer else None,
            ignored_scope=nncf.IgnoredScope(types=list(_LEFT_ALONE), validate=False),
            advanced_parameters=None if is_transformer else _whole_range(nncf),
            **_mode(nncf, precision),
        )
    except Exception as error:  # NNCF's and ONNX Runtime's share no base below Exception
        raise BuildError(f"quantising to {precision} failed: {error}") from error
    return found


def _mode(nncf: Any, precision: Precision) -> dict[str, Any]:
    if precision is Precision.FP8:
        return {"mode": nncf.QuantizationMode.FP8_E4M3}
    # Symmetric: an offset costs a correction in every product, and TensorRT has none.
    return {"preset": nncf.QuantizationPreset.PERFORMANCE}


def _whole_range(nncf: Any) -> Any:
    """Scales by the largest value of all samples.

    By default they go by the mean of the samples' largest values, which clips whole images that
    are brighter than others: a small residual net erred by 0.11 of its logits so, and by 0.011
    with these scales. The activations of transformers have outliers that are better clipped.
    """
    sets = import_module("nncf.quantization.range_estimator").RangeEstimatorParametersSet
    return nncf.AdvancedQuantizationParameters(activations_range_estimator_params=sets.MINMAX)


def _nncf() -> Any:
    # It reports every use to its makers, unless this is set before it is imported.
    os.environ.setdefault("NNCF_CI", "1")
    return import_module("nncf")


def _has_rounded_weights(graph: onnx.GraphProto) -> bool:
    constants = {tensor.name for tensor in graph.initializer}
    kept = (node.input[0] for node in graph.node if node.op_type == "DequantizeLinear")
    return not constants.isdisjoint(kept)


def _make_portable(graph: onnx.GraphProto) -> None:
    nodes = [node for node in graph.node if node.op_type in _QUANTISING]
    for node in nodes:
        attributes = [entry for entry in node.attribute if entry.name != "output_dtype"]
        del node.attribute[:]
        node.attribute.extend(attributes)
    _make_signed(graph, nodes)
    # They would declare uint8 where it is int8 now.
    del graph.value_info[:]


def _make_signed(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """An unsigned range from zero becomes half of a signed one with the same largest value."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    zeros = {node.input[2]: numpy_helper.to_array(tensors[node.input[2]]) for node in nodes}
    unsigned = {name for name, array in zeros.items() if array.dtype == np.uint8}
    for name in {node.input[1] for node in nodes if node.input[2] in unsigned}:
        # Scales are shared between nodes: each is widened once.
        wider = numpy_helper.to_array(tensors[name]) * _UNSIGNED_TO_SIGNED
        tensors[name].CopyFrom(numpy_helper.from_array(wider, name))
    for name in unsigned:
        tensors[name].CopyFrom(numpy_helper.from_array(zeros[name].astype(np.int8), name))
