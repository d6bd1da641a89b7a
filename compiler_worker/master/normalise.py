"""One form for one computation: folded, without dead or doubled nodes, without traces.

Every pass but that of `pool_windows.py` is a kept library's; here are only their order and the
loop that makes the result a fixed point, so that normalising a master again changes nothing.
"""

import logging
from collections.abc import Sequence
from itertools import repeat

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnxscript import optimizer

_Sizes = Sequence[int | ir.SymbolicDim]


# What it leaves as it is, is no trouble of the model's.
logging.getLogger("onnxscript.optimizer").setLevel(logging.ERROR)
# Passes enable each other; a graph that still changes after this many rounds is left as is,
# which is correct, only not minimal.
_MAX_ROUNDS = 8
# IR 10 is written by today's exporters; ONNX Runtime 1.31 reads none above 13.
_MIN_IR_VERSION = 10
_MAX_IR_VERSION = 13


def normalise(model: ir.Model) -> dict[str, list[int]]:
    """Bring an admitted model into its normal form, in place.

    Returns:
        By output, axes whose size the file fixes and its graph does not: torch's exporter writes
        the size of its example there for some that are dynamic.
    """
    opset = model.opset_imports[""]
    _align_functions(model, opset)
    _run(
        model,
        passes.InlinePass(),
        passes.RemoveInitializersFromInputsPass(),
    )
    names = [value.name for value in model.graph.outputs]
    declared = _without_shapes(model)
    before = None
    for _ in range(_MAX_ROUNDS):
        _simplify(model)
        after = _outline(model)
        if after == before:
            break
        before = after
    _run(model, passes.OutputFixPass())
    # Outputs of one value have been merged, and parted again under other names.
    for value, name in zip(model.graph.outputs, names, strict=True):
        value.name = name
    _run(model, passes.NameFixPass(), passes.TopologicalSortPass())
    # The pass takes every value for a tensor.
    if not any("Sequence" in n.op_type or "Optional" in n.op_type for n in model.graph.all_nodes()):
        _run(model, passes.ShapeInferencePass())
        cut_windows(model)
    # Names of dynamic dimensions are the owner's: inference would call them otherwise.
    unconfirmed = {}
    for value, shape in zip(model.graph.outputs, declared, strict=True):
        if axes := _unconfirmed(shape, value.shape):
            unconfirmed[value.name or ""] = axes
        value.shape = shape if value.producer() else value.shape
    # A graph without an op of ai.onnx has lost it.
    model.opset_imports.setdefault("", opset)
    _strip(model)
    model.ir_version = min(max(model.ir_version, _MIN_IR_VERSION), _MAX_IR_VERSION)
    return unconfirmed


def _align_functions(model: ir.Model, opset: int) -> None:
    """Have functions of the model's opset: ONNX's rules allow another one with the same ops."""
    for function in model.functions.values():
        if "" in function.opset_imports:
            function.opset_imports[""] = opset


def _unconfirmed(declared: ir.Shape | None, inferred: ir.Shape | None) -> list[int]:
    known = list(inferred.dims) if inferred is not None else []
    fixed = [axis for axis, size in enumerate(declared or ()) if isinstance(size, int)]
    return [axis for axis in fixed if not (axis < len(known) and isinstance(known[axis], int))]


def _without_shapes(model: ir.Model) -> list[ir.Shape | None]:
    """Remove the declared shapes of computed values; return those of the outputs.

    Tools that change a graph leave old ones behind, no checker compares those of dynamic axes
    with anything, and passes fold `Shape` by them. What can be known is inferred again.
    """
    declared = [value.shape for value in model.graph.outputs]
    for node in model.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    return declared


def _simplify(model: ir.Model) -> None:
    optimizer.optimize_ir(model)
    _run(
        model,
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
    )
    _lay_out_weights(model)
    _run(
        model,
        passes.DeduplicateHashedInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        # The pass would take a branch's only node, where that gives a value from around it.
        *([passes.IdentityEliminationPass()] if len(list(model.graphs())) == 1 else []),
        passes.RemoveUnusedNodesPass(),
        passes.RemoveUnusedOpsetsPass(),
    )


def _lay_out_weights(model: ir.Model) -> None:
    """Copy weights that folding left as views of others: bytes are taken in their own order."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            held = value.const_value
            if isinstance(held, ir.Tensor) and not held.numpy().flags.c_contiguous:
                array = np.ascontiguousarray(held.numpy())
                value.const_value = ir.Tensor(array, held.dtype, shape=held.shape, name=held.name)


def _run(model: ir.Model, *sequence: ir.passes.InPlacePass) -> None:
    for step in sequence:
        step(model)


def _outline(model: ir.Model) -> list[tuple[str, list[str | None]]]:
    return [(n.op_type, [v.name if v else None for v in n.inputs]) for n in model.graph.all_nodes()]


def _strip(model: ir.Model) -> None:
    # Exporters leave stack traces here, and with them paths of the machine they ran on.
    passes.ClearMetadataAndDocStringPass()(model)
    model.metadata_props.clear()
    model.producer_name = model.producer_version = model.domain = None
    model.model_version = None
    model.graph.name = "master"
    for graph in model.graphs():
        for value in graph.inputs:
            _strip_value(value)
        for value in graph.initializers.values():
            _strip_value(value)
        for node in graph:
            for value in node.outputs:
                _strip_value(value)


def _strip_value(value: ir.Value) -> None:
    value.metadata_props.clear()
    value.doc_string = None


def cut_windows(model: ir.Model) -> None:
    """Cut windows of means that reach past maps of known size; what is computed stays the same.

    Models take the mean of a whole map by a window of any size above it (1280 x 1280 over 7 x 7 in
    an EfficientNet). Inductor visits every place of such a window, OpenVINO refuses it, and the
    evaluator of ONNX takes 16 GiB for it.
    """
    for node in model.graph.all_nodes():
        if node.op_type == "AveragePool" and node.domain == "":
            shape = node.inputs[0].shape if node.inputs[0] else None
            if shape is not None and (kernel := _cut(node, shape.dims[2:])):
                node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", kernel)


def _cut(node: ir.Node, sizes: _Sizes) -> list[int] | None:
    """The kernel without what lies past the map on axes that one window covers."""
    given = {n: a.as_ints() for n, a in node.attributes.items() if a.type == ir.AttributeType.INTS}
    kernel = list(given["kernel_shape"])
    pads_itself = node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
    if pads_itself or any(given.get("pads", ())):
        return None
    steps = zip(given.get("strides", repeat(1)), given.get("dilations", repeat(1)), strict=False)
    for axis, (size, (stride, dilation)) in enumerate(zip(sizes, steps, strict=False)):
        # One more window would begin within the map.
        if isinstance(size, int) and dilation == 1 and 0 < kernel[axis] - size < stride:
            kernel[axis] = size
    return kernel
