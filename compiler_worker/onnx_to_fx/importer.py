"""Entry: walks the nodes of a model and assembles the fx graph."""

from __future__ import annotations

from typing import TypeAlias

import onnx
import torch
from onnx.inliner import inline_local_functions

from compiler_worker.master.walk import opsets_of
from compiler_worker.onnx_to_fx.builder import GraphBuilder, InputSpec
from compiler_worker.onnx_to_fx.constants import constant_from_tensor
from compiler_worker.onnx_to_fx.converters import load_converters
from compiler_worker.onnx_to_fx.dtypes import onnx_type_name, torch_dtype_from_onnx
from compiler_worker.onnx_to_fx.node_conversion import Walk
from compiler_worker.onnx_to_fx.scope import Axes, NameScope
from compiler_worker.onnx_to_fx.values import AnyValue, OptionalValue, SequenceValue
from services.contracts.errors import UnsupportedGraphError

load_converters()


def graph_module_from_onnx(
    model: onnx.ModelProto,
    *,
    float_dtype: torch.dtype = torch.float32,
) -> torch.fx.GraphModule:
    """Translate an ONNX model into one torch.fx graph with dynamic shapes.

    The module takes tensors in graph-input order and returns a tuple in
    graph-output order. Its `meta["initializers"]` maps parameter and buffer names
    to the master's initializer names (those of other constants are not in it),
    `meta["inputs"]` and `meta["outputs"]` hold the ONNX names in order.

    Args:
        model: a checked model; external data must be loaded.
        float_dtype: what the master's float32 tensors, casts and constants run as.
            float64 gives the reference of a proof, where decisions (integers made of floats,
            comparisons, roundings) stay float32; float16 or bfloat16 a typed engine.

    Returns:
        A module whose parameters share memory with the arrays they come from, unless
        `float_dtype` differs from their type.

    Raises:
        UnsupportedGraphError: the graph holds an op, version, attribute, element
            type or shape computation that has no exact translation.
    """
    return _Import(model, float_dtype).run()


class _Import:
    """One import: the main graph's scope and the walk over its nodes."""

    def __init__(self, model: onnx.ModelProto, float_dtype: torch.dtype) -> None:
        # The inliner copies the model, its weights too: one without functions is used as it is.
        self._model = inline_local_functions(model) if model.functions else model
        self._graph = GraphBuilder(float_dtype)
        self._walk = Walk(opsets_of(self._model.opset_import), _own(self._model, float_dtype))
        self._scope = NameScope(self._graph, declared=_declared(self._model.graph))

    def run(self) -> torch.fx.GraphModule:
        """Bind initializers and inputs, convert each node, return the module."""
        graph = self._model.graph
        self._bind_initializers()
        inputs = self._bind_inputs()
        for node in graph.node:
            self._walk.convert(node, self._scope)
        self._graph.graph.output(tuple(self._output(entry.name) for entry in graph.output))
        return self._module(inputs)

    def _bind_initializers(self) -> None:
        graph = self._model.graph
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise UnsupportedGraphError(f"sparse initializer '{name}' is not translated")
        for tensor in graph.initializer:
            try:
                self._scope.define(tensor.name, constant_from_tensor(tensor.name, tensor))
            except UnsupportedGraphError as error:
                raise self._refuse_value(tensor.name, error.reason) from error

    def _refuse_value(self, name: str, reason: str) -> UnsupportedGraphError:
        """Return the error for an input or initializer, at the first node that reads it."""
        reader = next((node for node in self._model.graph.node if name in node.input), None)
        if reader is None:
            return UnsupportedGraphError(reason)
        return self._walk.refusal(reader, reason)

    def _bind_inputs(self) -> list[str]:
        graph = self._model.graph
        # Up to IR version 3 ONNX lists every initializer among the inputs as well.
        given = [entry for entry in graph.input if not self._scope.defines(entry.name)]
        specs = [self._input_spec(entry) for entry in given]
        for spec, value in zip(specs, self._graph.inputs(specs), strict=True):
            self._scope.define(spec.name, value)
        return [spec.name for spec in specs]

    def _input_spec(self, entry: onnx.ValueInfoProto) -> InputSpec:
        kind = entry.type.WhichOneof("value")
        if kind != "tensor_type":
            reason = f"input '{entry.name}' is a {kind}, wanted a tensor"
            raise self._refuse_value(entry.name, reason)
        tensor_type = entry.type.tensor_type
        dtype = torch_dtype_from_onnx(tensor_type.elem_type)
        if dtype is None:
            wrong = onnx_type_name(tensor_type.elem_type)
            reason = f"input '{entry.name}' has type {wrong}, not translated"
            raise self._refuse_value(entry.name, reason)
        # The field itself: a shape that is there and has no axes is a scalar's.
        if not tensor_type.HasField("shape"):
            reason = f"input '{entry.name}' declares no rank; declare its axes, named where dynamic"
            raise self._refuse_value(entry.name, reason)
        return InputSpec(entry.name, dtype, _axes(tensor_type))

    def _output(self, name: str) -> _Returned:
        value = self._scope.find(name)
        if value is None:
            raise UnsupportedGraphError(f"output '{name}' is produced by no node")
        return self._returned(self._graph.running(value))

    def _returned(self, value: AnyValue) -> _Returned:
        """Return the module's outputs: a list for a sequence, None for an empty optional."""
        match value:
            case SequenceValue(items):
                return [self._graph.output(item) for item in items]
            case OptionalValue(item):
                return None if item is None else self._returned(item)
            case _:
                return self._graph.output(value)

    def _module(self, inputs: list[str]) -> torch.fx.GraphModule:
        built = self._graph
        # Inputs that nothing reads stay: fx counts placeholders as impure, and callers pass them.
        built.graph.eliminate_dead_code()
        built.graph.lint()
        module = torch.fx.GraphModule(built.root, built.graph, "OnnxGraph")
        initializers = {tensor.name for tensor in self._model.graph.initializer}
        module.meta["initializers"] = {
            attribute: name for attribute, name in built.constant_of.items() if name in initializers
        }
        module.meta["inputs"] = inputs
        module.meta["outputs"] = [entry.name for entry in self._model.graph.output]
        return module.eval()


_Returned: TypeAlias = torch.fx.Node | list[torch.fx.Node] | None


def _own(model: onnx.ModelProto, float_dtype: torch.dtype) -> frozenset[str]:
    """Outputs of the nodes that keep the master's own types."""
    if float_dtype != torch.float64:
        return frozenset()
    # Replicas import float32 alone, and are spared what this imports.
    from compiler_worker.precision.decisions import deciding_outputs

    return deciding_outputs(model)


def _declared(graph: onnx.GraphProto) -> dict[str, Axes]:
    return {
        entry.name: _axes(entry.type.tensor_type)
        for entry in graph.value_info
        if entry.type.tensor_type.HasField("shape")
    }


def _axes(tensor_type: onnx.TypeProto.Tensor) -> Axes:
    """Return per axis its static size, or its name ("" for none)."""
    # Some exporters write a dynamic axis as -1 rather than leave it open.
    return tuple(
        axis.dim_value if axis.HasField("dim_value") and axis.dim_value >= 0 else axis.dim_param
        for axis in tensor_type.shape.dim
    )
