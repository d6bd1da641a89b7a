"""Converts one node after another: finds its converter, checks it, binds its results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import onnx
import torch

from compiler_worker.master.walk import domain_of, opsets_of, refusal
from compiler_worker.onnx_to_fx import converter_table
from compiler_worker.onnx_to_fx.control_flow.subgraph import Kept, Subgraph
from compiler_worker.onnx_to_fx.dtypes import CARRIED, element_type_name, integer_range, num_bits
from compiler_worker.onnx_to_fx.functions import function_of
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.scope import NameScope
from compiler_worker.onnx_to_fx.sym import HostInt, Sym
from compiler_worker.onnx_to_fx.values import (
    AnyValue,
    Constant,
    HostValue,
    OptionalValue,
    SequenceValue,
    Tensor,
    host_elementwise,
)
from services.contracts.errors import UnsupportedGraphError

# Of older opsets only some ops are translated.
OLDEST_OPSET = 7


class Walk:
    """The walk over the nodes of a model and of the graphs inside of its nodes."""

    def __init__(self, opsets: Mapping[str, int], own: Collection[str] = ()) -> None:
        """Remember how nodes are read.

        Args:
            opsets: by domain; "" is ai.onnx.
            own: outputs of nodes that run in the master's own types, whatever the others do.
        """
        self._opsets = dict(opsets)
        self._own = own
        self._kept: Kept = {}

    def convert(self, proto: onnx.NodeProto, scope: NameScope) -> None:
        """Emit one node and bind its outputs.

        Raises:
            UnsupportedGraphError: the node has no exact translation; names it.
        """
        names = list(proto.output)
        is_own = any(name in self._own for name in names)
        with scope.graph.own_types() if is_own else nullcontext():
            op = self._op(proto, scope)
            row = converter_table.find(domain_of(proto.domain), proto.op_type, op.version)
            body = function_of(op) if row is None else None
            results = _results(op, row) if body is None else self._converted(op, body)
        if any(name and (i >= len(results) or results[i] is None) for i, name in enumerate(names)):
            raise op.refuse(f"only {len(results)} of its outputs are translated")
        # A graph is in single assignment: the later value would silently stand for the first.
        taken = [name for name in names if scope.defines(name)]
        if taken:
            raise op.refuse(f"output '{taken[0]}' is a name that is already defined")
        for name, value in zip(names, results, strict=False):
            if name and value is not None:
                if is_own:
                    scope.graph.mark_own(value)
                scope.define(name, _with_declared_dims(name, value, scope))

    def refusal(self, proto: onnx.NodeProto, reason: str) -> UnsupportedGraphError:
        """Return the error that refuses a node of which nothing else is known."""
        return refusal(proto, self._opsets.get(domain_of(proto.domain), 0), reason)

    def _converted(self, op: Op, body: onnx.FunctionProto) -> list[AnyValue | None]:
        """Convert the nodes of a function, whose scope is its inputs and no names around it."""
        scope = NameScope(op.graph)
        # Not strict: optional inputs at the end may be left out without a name.
        for name, value in zip(body.input, op.inputs, strict=False):
            if value is not None:
                scope.define(name, value)
        walk = Walk(self._opsets | opsets_of(body.opset_import))
        for node in body.node:
            walk.convert(node, scope)
        return [scope.find(name) for name in body.output]

    def _op(self, proto: onnx.NodeProto, scope: NameScope) -> Op:
        domain = domain_of(proto.domain)
        opset = self._opsets.get(domain, 0)
        try:
            # The newest version up to the opset: an op keeps the meaning that it had there.
            schema = onnx.defs.get_schema(proto.op_type, opset, domain)
        except onnx.defs.SchemaError:
            raise self.refusal(proto, "no such op is known") from None
        inputs = [self._input(name, proto, scope) for name in proto.input]
        subgraphs = {
            attribute.name: Subgraph(attribute.g, scope, self.convert, self._kept)
            for attribute in proto.attribute
            if attribute.HasField("g")
        }
        return Op(proto, schema, opset, inputs, scope.graph, subgraphs)

    def _input(self, name: str, proto: onnx.NodeProto, scope: NameScope) -> AnyValue | None:
        # ONNX writes an optional input that is left out before others as an empty name.
        if not name:
            return None
        value = scope.find(name)
        if value is None:
            kinds = "a graph input, an initializer nor an earlier output"
            raise self.refusal(proto, f"input '{name}' is neither {kinds}")
        return scope.graph.running(value)


def _results(op: Op, row: converter_table.Converter | None) -> Sequence[AnyValue | None]:
    try:
        return _as_sequence(_result(_checked(row, op), op))
    except UnsupportedGraphError as error:
        if error.op_type:
            raise
        raise op.refuse(error.reason) from error


def _checked(row: converter_table.Converter | None, op: Op) -> converter_table.Converter:
    """Return the converter of an op; raises UnsupportedGraphError without one."""
    if row is None:
        is_old = not op.schema.domain and op.opset < OLDEST_OPSET
        hint = "; convert the model with onnx.version_converter first" if is_old else ""
        # onnx's stubs lack a part of a schema.
        schema: Any = op.schema
        if schema.has_context_dependent_function:
            hint = ", and ONNX writes it in other ops only where more of its inputs is known"
        raise op.refuse(f"version {op.version} of the op is not translated{hint}")
    unknown = sorted({a.name for a in op.proto.attribute} - op.schema.attributes.keys())
    if unknown:
        raise op.refuse(f"version {op.version} of the op has no attribute '{unknown[0]}'")
    strange = _carried_types(op.inputs) - row.carried
    if strange:
        shown = ", ".join(sorted(map(element_type_name, strange)))
        raise op.refuse(f"element type {shown} is not translated by this op")
    return row


def _carried_types(values: Sequence[AnyValue | None]) -> set[torch.dtype]:
    found: set[torch.dtype] = set()
    for value in values:
        match value:
            case SequenceValue():
                found |= _carried_types(value.items)
            case OptionalValue():
                found |= _carried_types([value.item])
            case Tensor() | Constant() if value.dtype in CARRIED:
                found.add(value.dtype)
    return found


def _result(row: converter_table.Converter, op: Op) -> converter_table.Result:
    """Compute on the host what is shape arithmetic, emit the rest."""
    if row.convert_on_host is not None and _is_host_only(op):
        done = row.convert_on_host(op)
        if done is not None and all(map(is_in_range, _as_sequence(done))):
            return [with_wrapped_symbols(value) for value in _as_sequence(done)]
    return row.convert(op)


def _is_host_only(op: Op) -> bool:
    given = [value for value in op.inputs if value is not None]
    hostable = [
        isinstance(value, HostValue) or (isinstance(value, Constant) and value.is_hostable)
        for value in given
    ]
    return bool(given) and all(hostable)


def _as_sequence(result: converter_table.Result) -> Sequence[AnyValue | None]:
    return result if isinstance(result, Sequence) else [result]


def _with_declared_dims(name: str, value: AnyValue, scope: NameScope) -> AnyValue:
    """Fill unknown sizes from the shape the model itself declares."""
    declared = scope.declared.get(name)
    if not isinstance(value, Tensor) or declared is None or len(declared) != value.rank:
        return value
    dims = tuple(
        scope.graph.declared(axis) if size is None else size
        for size, axis in zip(value.dims, declared, strict=True)
    )
    return replace(value, dims=dims)


def is_in_range(value: AnyValue | None) -> bool:
    """Whether no integer is past its type: Python's do not wrap, so the device computes those."""
    if not isinstance(value, HostValue) or value.dtype == torch.bool:
        return True
    least, largest = integer_range(value.dtype)
    items = [item for item in value.data.reshape(-1) if not isinstance(item, Sym)]
    return all(least <= item <= largest for item in items)


def with_wrapped_symbols(value: AnyValue | None) -> AnyValue | None:
    """Wrap what is computed from sizes in fewer bits than sizes have."""
    if not isinstance(value, HostValue) or value.dtype in (torch.bool, torch.int64):
        return value
    bits = num_bits(value.dtype)

    def wrapped(item: HostInt) -> HostInt:
        if not isinstance(item, Sym) or item.node.target in _WITHIN:
            return item
        return item.apply(_wrapped_in_call, item, bits)

    return host_elementwise(wrapped, value.data, dtype=value.dtype)


def _wrapped_in_call(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    # Compared first, so that an export whose sizes never leave the type computes nothing.
    if -half <= value < half:
        return value
    return (value + half) % (2 * half) - half


# No axis is as long as 32 bits count.
_WITHIN = (torch.ops.aten.sym_size.int, _wrapped_in_call)
