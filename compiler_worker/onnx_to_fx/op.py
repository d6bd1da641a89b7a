"""One ONNX node as a converter reads it: typed attributes, inputs on host or device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from compiler_worker.master.walk import refusal
from compiler_worker.onnx_to_fx.builder import GraphBuilder
from compiler_worker.onnx_to_fx.control_flow.subgraph import Subgraph
from compiler_worker.onnx_to_fx.dtypes import CARRIED, carried_tensor
from compiler_worker.onnx_to_fx.sym import HostInt, Sym
from compiler_worker.onnx_to_fx.values import (
    AnyValue,
    Constant,
    HostValue,
    OptionalValue,
    SequenceValue,
    Tensor,
    Value,
)
from services.contracts.errors import UnsupportedGraphError

T = TypeVar("T")


class Op:
    """A node with its inputs resolved, which are of any shape.

    Attributes:
        proto: the node itself.
        schema: ONNX's own description of this op version; gives attribute defaults.
        version: schema version in force at the model's opset.
        opset: version of the domain that the model imports.
        inputs: values by position, None where left out.
        graph: where fx nodes are emitted.
    """

    def __init__(
        self,
        proto: onnx.NodeProto,
        schema: onnx.defs.OpSchema,
        opset: int,
        inputs: Sequence[AnyValue | None],
        graph: GraphBuilder,
        subgraphs: Mapping[str, Subgraph],
    ) -> None:
        """Read the attributes once; nothing is emitted yet.

        Args:
            proto: the node itself.
            schema: of the op, in the version that `opset` selects.
            opset: version of the domain that the model imports.
            inputs: values by position, None where left out.
            graph: where fx nodes are emitted.
            subgraphs: graphs inside of the node, by the name of the attribute that holds each.
        """
        self.proto = proto
        self.schema = schema
        self.opset = opset
        self.graph = graph
        self.version = schema.since_version
        self.inputs = list(inputs)
        self._attributes = {a.name: a for a in proto.attribute}
        self._subgraphs = subgraphs

    # The node itself

    @property
    def name(self) -> str:
        """Node name, or its first output where the exporter gave none."""
        return self.proto.name or next(iter(self.proto.output), "")

    def refuse(self, reason: str) -> UnsupportedGraphError:
        """Return the error that refuses this node; the caller raises it."""
        return refusal(self.proto, self.opset, reason)

    def has_output(self, index: int) -> bool:
        """Whether the graph uses output `index`."""
        return len(self.proto.output) > index and self.proto.output[index] != ""

    # Attributes

    def attr_int(self, name: str) -> int:
        """Return an int attribute or its ONNX default; raises UnsupportedGraphError."""
        return self._required(name, int)

    def attr_float(self, name: str) -> float:
        """Return a float attribute or its ONNX default; raises UnsupportedGraphError."""
        return self._required(name, float)

    def attr_str(self, name: str) -> str:
        """Return a string attribute or its ONNX default; raises UnsupportedGraphError."""
        return self._required(name, bytes).decode()

    def choice(self, name: str, known: Collection[str]) -> str:
        """Return a string attribute that is one of those known; raises UnsupportedGraphError."""
        value = self.attr_str(name)
        if value not in known:
            raise self.refuse(f"{name} '{value}' is not translated, only {', '.join(known)}")
        return value

    def maybe_int(self, name: str) -> int | None:
        """Return an int attribute, None where absent and without default."""
        return self._attribute(name, int)

    def maybe_float(self, name: str) -> float | None:
        """Return a float attribute, None where absent and without default."""
        return self._attribute(name, float)

    def maybe_ints(self, name: str) -> list[int] | None:
        """Return an ints attribute, None where absent."""
        value = self._attribute(name, list)
        return None if value is None else [self._checked(name, item, int) for item in value]

    def maybe_floats(self, name: str) -> list[float] | None:
        """Return a floats attribute, None where absent."""
        value = self._attribute(name, list)
        return None if value is None else [self._checked(name, item, float) for item in value]

    def maybe_strings(self, name: str) -> list[str] | None:
        """Return a strings attribute, None where absent."""
        value = self._attribute(name, list)
        if value is None:
            return None
        return [self._checked(name, item, bytes).decode() for item in value]

    def maybe_tensor(self, name: str) -> onnx.TensorProto | None:
        """Return a tensor attribute, None where absent."""
        return self._attribute(name, onnx.TensorProto)

    def subgraph(self, name: str) -> Subgraph:
        """Return a graph attribute; raises UnsupportedGraphError when there is none."""
        if name not in self._subgraphs:
            raise self.refuse(f"attribute '{name}' is required and missing")
        return self._subgraphs[name]

    def _required(self, name: str, kind: type[T]) -> T:
        value = self._attribute(name, kind)
        if value is None:
            raise self.refuse(f"attribute '{name}' is required and missing")
        return value

    def _attribute(self, name: str, kind: type[T]) -> T | None:
        proto = self._attributes.get(name)
        if proto is None:
            # The schema of the version in force has the default: it moved for some ops.
            known = self.schema.attributes.get(name)
            proto = known.default_value if known is not None else None
        if proto is None or proto.type == onnx.AttributeProto.UNDEFINED:
            return None
        return self._checked(name, onnx.helper.get_attribute_value(proto), kind)

    def _checked(self, name: str, value: Any, kind: type[T]) -> T:
        if kind is list and not isinstance(value, kind):
            value = list(value)
        if not isinstance(value, kind):
            raise self.refuse(
                f"attribute '{name}' has type {type(value).__name__}, wanted {kind.__name__}"
            )
        return value

    # Inputs

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def any_value(self, index: int) -> AnyValue:
        """Return a required input of any kind, a sequence too; raises UnsupportedGraphError."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise self.refuse(f"input {index} is required and missing")
        return value

    def value(self, index: int) -> Value:
        """Return a required input; raises UnsupportedGraphError for what is not a tensor."""
        return self.as_tensor(self.any_value(index))

    def as_tensor(self, value: AnyValue) -> Value:
        """Return a value that must be a tensor, on host or device; raises UnsupportedGraphError."""
        if isinstance(value, SequenceValue | OptionalValue):
            kind = "a sequence" if isinstance(value, SequenceValue) else "an optional"
            raise self.refuse(f"found {kind} where it takes a tensor")
        return value

    def sequence(self, index: int) -> tuple[Value, ...]:
        """Return the elements of a required sequence; raises UnsupportedGraphError for others."""
        value = self.any_value(index)
        if isinstance(value, SequenceValue):
            return value.items
        raise self.refuse(f"input {index} ('{self.proto.input[index]}') is not a sequence")

    def tensor(self, index: int) -> Tensor:
        """Return a required input on the device."""
        return self.graph.tensor(self.value(index))

    def maybe(self, index: int) -> Tensor | None:
        """Return an optional input on the device."""
        return self.tensor(index) if self.has(index) else None

    def tensors(self) -> list[Tensor]:
        """Return every input on the device."""
        return [self.tensor(index) for index in range(len(self.inputs))]

    def dims(self, index: int) -> list[HostInt]:
        """Return the sizes of an input's axes on the host."""
        value = self.value(index)
        if isinstance(value, Tensor):
            return [self.graph.dim(value, axis) for axis in range(value.rank)]
        return list(value.dims)

    def host(self, index: int) -> NDArray[np.object_]:
        """Return a required input as host integers, Python's own or symbols, in the input's shape.

        Raises UnsupportedGraphError when it is computed on the device.
        """
        value = self.value(index)
        if isinstance(value, HostValue):
            return value.data
        if isinstance(value, Constant) and not value.dtype.is_floating_point:
            return value.array.astype(object)
        folded = self._folded(value)
        if folded is not None and not folded.is_floating_point():
            return folded.numpy().astype(object)
        raise self.refuse(
            f"input {index} ('{self.proto.input[index]}') depends on input values; make it "
            "constant or derive it from Shape, so that one graph serves every shape"
        )

    def ints(self, index: int) -> list[HostInt]:
        """Return a host input as a flat list; elements may be symbolic."""
        return list(self.host(index).reshape(-1))

    def static_ints(self, index: int) -> list[int]:
        """Return a host input as a flat list of ints that are the same in every call.

        Raises UnsupportedGraphError when one depends on shapes or on values.
        """
        items = self.ints(index)
        if any(isinstance(item, Sym) for item in items):
            raise self.refuse(f"input {index} ('{self.proto.input[index]}') must be constant")
        return [int(item) for item in items if not isinstance(item, Sym)]

    def floats(self, index: int) -> list[float]:
        """Return a constant float input as a flat list; raises UnsupportedGraphError for others."""
        value = self.value(index)
        if isinstance(value, Constant):
            return [float(item) for item in value.array.reshape(-1)]
        folded = self._folded(value)
        if folded is not None and folded.is_floating_point():
            return [float(item) for item in folded.reshape(-1)]
        raise self.refuse(f"input {index} ('{self.proto.input[index]}') must be constant")

    def _folded(self, value: Value) -> torch.Tensor | None:
        """Return what a tensor holds that is computed from constants alone, else None."""
        if not isinstance(value, Tensor) or value.dtype in CARRIED:
            return None
        folded = self.graph.owners[value.node.graph].fold(value.node)
        return folded if isinstance(folded, torch.Tensor) else None

    def known(self, value: AnyValue | None) -> Any:
        """Return the one element of a value where it is the same in every call, else None."""
        match value:
            case HostValue() if value.data.size == 1:
                item = value.data.reshape(-1)[0]
                return None if isinstance(item, Sym) else item
            case Constant() if value.array.size == 1 and value.dtype not in CARRIED:
                return value.array.reshape(-1)[0].item()
            case Tensor():
                folded = self._folded(value)
                return None if folded is None or folded.numel() != 1 else folded.item()
            case _:
                return None

    def number(self, index: int) -> Any:
        """Return a one-element input as a Python number or `Sym`, None where it is not one.

        Scalars go into the graph as numbers rather than as tensors: they need no
        device, and torch picks the kernel for a scalar operand.
        """
        value = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(value, Constant) and value.array.size == 1:
            item = carried_tensor(value.array, value.dtype).item()
            return self.graph.number(item, value.dtype)
        if isinstance(value, HostValue) and value.data.size == 1:
            return value.data.reshape(-1)[0]
        return None

    def operand(self, index: int, other_rank: int) -> Any:
        """Return an input as a number where that broadcasts the same, else as a tensor."""
        number = self.number(index)
        if number is not None and len(self.value(index).dims) <= other_rank:
            return number
        return self.tensor(index)

    # Emission

    def call(self, function: Callable[..., Any], *args: object, **kwargs: object) -> torch.fx.Node:
        """Emit a call into this node's graph.

        Args:
            function: see `GraphBuilder.call`.
            *args: values, nodes or constants.
            **kwargs: the same, by name.
        """
        return self.graph.call(function, *args, **kwargs)

    def method(self, name: str, *args: object, **kwargs: object) -> torch.fx.Node:
        """Emit a tensor's own method into this node's graph.

        Args:
            name: of a method of torch.Tensor.
            *args: the tensor, then the method's own arguments.
            **kwargs: of the method.
        """
        return self.graph.method(name, *args, **kwargs)

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis as a non-negative index; raises UnsupportedGraphError beyond the rank."""
        if not -rank <= axis < max(rank, 1):
            raise self.refuse(f"axis {axis} is outside rank {rank}")
        return axis % rank if rank else 0
