"""Entry: walks the nodes of a model and assembles the fx graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx.inliner import inline_local_functions, inline_selected_functions

from compiler_worker.onnx_to_fx import registry
from compiler_worker.onnx_to_fx.builder import GraphBuilder, InputSpec
from compiler_worker.onnx_to_fx.constants import constant_from_tensor
from compiler_worker.onnx_to_fx.converters import load_converters
from compiler_worker.onnx_to_fx.dtypes import (
    CARRIED,
    element_type_name,
    integer_range,
    onnx_type_name,
    torch_dtype_from_onnx,
)
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import Sym
from compiler_worker.onnx_to_fx.values import Constant, Host, Tensor, Value
from services.contracts.errors import UnsupportedGraphError

# Of older opsets only some ops are translated.
OLDEST_OPSET = 6

load_converters()


def graph_module_from_onnx(
    model: onnx.ModelProto,
    *,
    float_dtype: torch.dtype = torch.float32,
    weights: Mapping[str, NDArray[np.generic]] | None = None,
) -> torch.fx.GraphModule:
    """Translate an ONNX model into one torch.fx graph with dynamic shapes.

    The module takes tensors in graph-input order and returns a tuple in
    graph-output order. Its `meta["initializers"]` maps parameter and buffer names
    to the master's initializer names (those of other constants are not in it),
    `meta["inputs"]` and `meta["outputs"]` hold the ONNX names in order.

    Args:
        model: a checked model; external data must be loaded or given in `weights`.
        float_dtype: what the master's float32 tensors, casts and constants run as.
            float64 gives the reference of a proof, float16 or bfloat16 a typed engine.
        weights: arrays by initializer name, used by reference in place of the
            model's own copies (memory-mapped blobs, or weights shared by imports).

    Returns:
        A module whose parameters share memory with the arrays they come from, unless
        `float_dtype` asks for another type.

    Raises:
        UnsupportedGraphError: the graph holds an op, version, attribute, element
            type or shape computation that has no exact translation.
    """
    return _Import(model, float_dtype, weights or {}).run()


class _Import:
    """State of one import: the values by name."""

    def __init__(
        self,
        model: onnx.ModelProto,
        float_dtype: torch.dtype,
        weights: Mapping[str, NDArray[np.generic]],
    ) -> None:
        self._model = _without_functions(model)
        self._opsets = {entry.domain: entry.version for entry in self._model.opset_import}
        if "ai.onnx" in self._opsets:
            self._opsets[""] = self._opsets.pop("ai.onnx")
        self._weights = weights
        self._graph = GraphBuilder(float_dtype)
        self._values: dict[str, Value] = {}
        self._declared = {
            entry.name: _axes(entry.type.tensor_type)
            for entry in self._model.graph.value_info
            if entry.type.tensor_type.HasField("shape")
        }

    def run(self) -> torch.fx.GraphModule:
        """Bind initializers and inputs, convert each node, return the module."""
        graph = self._model.graph
        self._bind_initializers()
        inputs = self._bind_inputs()
        for node in graph.node:
            self._convert(node)
        self._graph.graph.output(tuple(self._output(entry.name) for entry in graph.output))
        return self._module(inputs)

    def _bind_initializers(self) -> None:
        graph = self._model.graph
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise UnsupportedGraphError(f"sparse initializer '{name}' is not translated")
        for tensor in graph.initializer:
            given = self._weights.get(tensor.name)
            try:
                self._values[tensor.name] = constant_from_tensor(tensor.name, tensor, given)
            except UnsupportedGraphError as error:
                raise self._refuse_value(tensor.name, error.reason) from error

    def _refuse_value(self, name: str, reason: str) -> UnsupportedGraphError:
        """Return the error for an input or initializer, at the first node that reads it."""
        reader = next((node for node in self._model.graph.node if name in node.input), None)
        if reader is None:
            return UnsupportedGraphError(reason)
        return UnsupportedGraphError(
            reason,
            op_type=_shown_op(reader),
            node=_shown_name(reader),
            opset=self._opsets.get(_domain(reader), 0),
        )

    def _bind_inputs(self) -> list[str]:
        given = [entry for entry in self._model.graph.input if entry.name not in self._values]
        specs = [self._input_spec(entry) for entry in given]
        for spec, value in zip(specs, self._graph.inputs(specs), strict=True):
            self._values[spec.name] = value
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
        if not tensor_type.HasField("shape"):
            reason = f"input '{entry.name}' declares no rank; declare its axes, named where dynamic"
            raise self._refuse_value(entry.name, reason)
        return InputSpec(entry.name, dtype, _axes(tensor_type))

    def _convert(self, proto: onnx.NodeProto) -> None:
        op = self._op(proto)
        row = registry.find(_domain(proto), proto.op_type, op.version)
        if row is None:
            is_old = not _domain(proto) and op.opset < OLDEST_OPSET
            hint = "; convert the model with onnx.version_converter first" if is_old else ""
            raise op.refuse(f"version {op.version} of the op is not translated{hint}")
        unknown = sorted(op.attribute_names() - row.attributes)
        if unknown:
            raise op.refuse(f"attribute '{unknown[0]}' is not understood")
        strange = _carried_types(op) - row.carried
        if strange:
            shown = ", ".join(sorted(map(element_type_name, strange)))
            raise op.refuse(f"element type {shown} is not translated by this op")
        results = _as_sequence(_result(row, op))
        names = list(proto.output)
        if any(name and (i >= len(results) or results[i] is None) for i, name in enumerate(names)):
            raise op.refuse(f"only {len(results)} of its outputs are translated")
        taken = [name for name in names if name in self._values]
        if taken:
            raise op.refuse(f"output '{taken[0]}' is a name that is already defined")
        for name, value in zip(names, results, strict=False):
            if name and value is not None:
                self._values[name] = self._with_declared_dims(name, value)

    def _with_declared_dims(self, name: str, value: Value) -> Value:
        """Fill the sizes nobody knows from the shape the model itself declares."""
        declared = self._declared.get(name)
        if not isinstance(value, Tensor) or declared is None or len(declared) != value.rank:
            return value
        dims = tuple(
            self._graph.declared(axis) if size is None else size
            for size, axis in zip(value.dims, declared, strict=True)
        )
        return replace(value, dims=dims)

    def _op(self, proto: onnx.NodeProto) -> Op:
        domain = _domain(proto)
        opset = self._opsets.get(domain, 0)
        try:
            schema = onnx.defs.get_schema(proto.op_type, opset, domain)
        except onnx.defs.SchemaError:
            raise UnsupportedGraphError(
                "no such op is known",
                op_type=_shown_op(proto),
                node=_shown_name(proto),
                opset=opset,
            ) from None
        return Op(proto, schema, opset, [self._input(n, proto) for n in proto.input], self._graph)

    def _input(self, name: str, proto: onnx.NodeProto) -> Value | None:
        if not name:
            return None
        if name not in self._values:
            raise UnsupportedGraphError(
                f"input '{name}' is neither a graph input, an initializer nor an earlier output",
                op_type=_shown_op(proto),
                node=_shown_name(proto),
                opset=self._opsets.get(_domain(proto), 0),
            )
        return self._values[name]

    def _output(self, name: str) -> torch.fx.Node:
        if name not in self._values:
            raise UnsupportedGraphError(f"output '{name}' is produced by no node")
        return self._graph.output(self._values[name])

    def _module(self, inputs: list[str]) -> torch.fx.GraphModule:
        built = self._graph
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


def _carried_types(op: Op) -> set[torch.dtype]:
    return {
        value.dtype
        for value in op.inputs
        if isinstance(value, Tensor | Constant) and value.dtype in CARRIED
    }


def _result(row: registry.Converter, op: Op) -> registry.Result:
    """Compute on the host what is shape arithmetic, emit the rest."""
    if row.convert_on_host is not None and _is_host_only(op):
        done = row.convert_on_host(op)
        if done is not None and all(map(_is_in_range, _as_sequence(done))):
            return done
    return row.convert(op)


def _is_in_range(value: Value | None) -> bool:
    """Whether no integer is past its type: Python's do not wrap, so the device computes those."""
    if not isinstance(value, Host) or value.dtype == torch.bool:
        return True
    least, largest = integer_range(value.dtype)
    items = [item for item in value.data.reshape(-1) if not isinstance(item, Sym)]
    return all(least <= item <= largest for item in items)


def _is_host_only(op: Op) -> bool:
    given = [value for value in op.inputs if value is not None]
    hostable = [
        isinstance(value, Host) or (isinstance(value, Constant) and value.is_hostable)
        for value in given
    ]
    return bool(given) and all(hostable)


def _as_sequence(result: registry.Result) -> Sequence[Value | None]:
    return result if isinstance(result, Sequence) else [result]


def _axes(tensor_type: onnx.TypeProto.Tensor) -> tuple[int | str, ...]:
    """Return per axis its static size, or its name ("" for none)."""
    # Some exporters write a dynamic axis as -1 rather than leave it open.
    return tuple(
        axis.dim_value if axis.HasField("dim_value") and axis.dim_value >= 0 else axis.dim_param
        for axis in tensor_type.shape.dim
    )


def _domain(proto: onnx.NodeProto) -> str:
    return "" if proto.domain == "ai.onnx" else proto.domain


def _shown_op(proto: onnx.NodeProto) -> str:
    domain = _domain(proto)
    return f"{domain}::{proto.op_type}" if domain else proto.op_type


def _shown_name(proto: onnx.NodeProto) -> str:
    return proto.name or next(iter(proto.output), "")


def _without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inline functions of the model and of ONNX itself; models without any are used as they are."""
    if model.functions:
        model = inline_local_functions(model)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    if versions.get(_PREVIEW) != 1 or not any(map(_is_inlined, model.graph.node)):
        return model
    names = [(_PREVIEW, op_type) for op_type in _INLINED]
    return inline_selected_functions(model, names, exclude=False, inline_schema_functions=True)


# Ops that ONNX writes in other ops, with graphs of the node's own put in the middle; the
# attributes that version 1 has.
_PREVIEW = "ai.onnx.preview"
_INLINED = {"FlexAttention": {"prob_mod", "scale", "score_mod", "softmax_precision"}}


def _is_inlined(node: onnx.NodeProto) -> bool:
    known = _INLINED.get(node.op_type) if node.domain == _PREVIEW else None
    return known is not None and known >= {attribute.name for attribute in node.attribute}
