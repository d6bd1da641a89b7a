"""Converts one node after another: finds its converter, checks it, binds its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx
import torch

from compiler_worker.onnx_to_fx import registry
from compiler_worker.onnx_to_fx.dtypes import CARRIED, element_type_name, integer_range
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.scope import Scope
from compiler_worker.onnx_to_fx.subgraph import Kept, Subgraph
from compiler_worker.onnx_to_fx.sym import Sym
from compiler_worker.onnx_to_fx.values import AnyValue, Constant, Host, Listed, Maybe, Tensor
from services.contracts.errors import UnsupportedGraphError

# Of older opsets only some ops are translated.
OLDEST_OPSET = 6


class Walk:
    """The walk over the nodes of a model and of the graphs inside of its nodes."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        """Remember the opset by domain; "" is ai.onnx."""
        self._opsets = opsets
        self._kept: Kept = {}

    def convert(self, proto: onnx.NodeProto, scope: Scope) -> None:
        """Emit one node and bind its outputs.

        Raises:
            UnsupportedGraphError: the node has no exact translation; names it.
        """
        op = self._op(proto, scope)
        results = _results(op)
        names = list(proto.output)
        if any(name and (i >= len(results) or results[i] is None) for i, name in enumerate(names)):
            raise op.refuse(f"only {len(results)} of its outputs are translated")
        taken = [name for name in names if scope.defines(name)]
        if taken:
            raise op.refuse(f"output '{taken[0]}' is a name that is already defined")
        for name, value in zip(names, results, strict=False):
            if name and value is not None:
                scope.define(name, _with_declared_dims(name, value, scope))

    def refusal(self, proto: onnx.NodeProto, reason: str) -> UnsupportedGraphError:
        """Return the error that refuses a node of which nothing else is known."""
        domain = _domain(proto)
        return UnsupportedGraphError(
            reason,
            op_type=f"{domain}::{proto.op_type}" if domain else proto.op_type,
            node=proto.name or next(iter(proto.output), ""),
            opset=self._opsets.get(domain, 0),
        )

    def _op(self, proto: onnx.NodeProto, scope: Scope) -> Op:
        domain = _domain(proto)
        opset = self._opsets.get(domain, 0)
        try:
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

    def _input(self, name: str, proto: onnx.NodeProto, scope: Scope) -> AnyValue | None:
        if not name:
            return None
        value = scope.find(name)
        if value is None:
            kinds = "a graph input, an initializer nor an earlier output"
            raise self.refusal(proto, f"input '{name}' is neither {kinds}")
        return value


def _results(op: Op) -> Sequence[AnyValue | None]:
    try:
        return _as_sequence(_result(_row(op), op))
    except UnsupportedGraphError as error:
        if error.op_type:
            raise
        raise op.refuse(error.reason) from error


def _row(op: Op) -> registry.Converter:
    """Return the converter of an op, or refuse what it does not know."""
    domain = _domain(op.proto)
    row = registry.find(domain, op.proto.op_type, op.version)
    if row is None:
        is_old = not domain and op.opset < OLDEST_OPSET
        hint = "; convert the model with onnx.version_converter first" if is_old else ""
        raise op.refuse(f"version {op.version} of the op is not translated{hint}")
    unknown = sorted(op.attribute_names() - row.attributes)
    if unknown:
        raise op.refuse(f"attribute '{unknown[0]}' is not understood")
    strange = _carried_types(op.inputs) - row.carried
    if strange:
        shown = ", ".join(sorted(map(element_type_name, strange)))
        raise op.refuse(f"element type {shown} is not translated by this op")
    return row


def _carried_types(values: Sequence[AnyValue | None]) -> set[torch.dtype]:
    found: set[torch.dtype] = set()
    for value in values:
        match value:
            case Listed():
                found |= _carried_types(value.items)
            case Maybe():
                found |= _carried_types([value.item])
            case Tensor() | Constant() if value.dtype in CARRIED:
                found.add(value.dtype)
    return found


def _result(row: registry.Converter, op: Op) -> registry.Result:
    """Compute on the host what is shape arithmetic, emit the rest."""
    if row.convert_on_host is not None and _is_host_only(op):
        done = row.convert_on_host(op)
        if done is not None and all(map(_is_in_range, _as_sequence(done))):
            return done
    return row.convert(op)


def _is_in_range(value: AnyValue | None) -> bool:
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


def _as_sequence(result: registry.Result) -> Sequence[AnyValue | None]:
    return result if isinstance(result, Sequence) else [result]


def _with_declared_dims(name: str, value: AnyValue, scope: Scope) -> AnyValue:
    """Fill the sizes nobody knows from the shape the model itself declares."""
    declared = scope.declared.get(name)
    if not isinstance(value, Tensor) or declared is None or len(declared) != value.rank:
        return value
    dims = tuple(
        scope.graph.declared(axis) if size is None else size
        for size, axis in zip(value.dims, declared, strict=True)
    )
    return replace(value, dims=dims)


def _domain(proto: onnx.NodeProto) -> str:
    return "" if proto.domain == "ai.onnx" else proto.domain
