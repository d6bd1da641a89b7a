"""Emits fx nodes: the one place where values become graph arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count
from keyword import iskeyword
from typing import Any

import numpy as np
import torch
from torch.fx.node import map_aggregate, map_arg

from compiler_worker.onnx_to_fx.dtypes import (
    carried_tensor,
    carrier,
    interface,
    numpy_dtype_from_torch,
    saturated,
)
from compiler_worker.onnx_to_fx.folding import fold
from compiler_worker.onnx_to_fx.sym import HostInt, Sym
from compiler_worker.onnx_to_fx.values import AnyValue, Constant, Dims, HostValue, Tensor, Value


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A graph input: its name, element type, and per axis a static size or a name."""

    name: str
    dtype: torch.dtype
    axes: tuple[int | str, ...]


@dataclass(slots=True)
class FloatTypes:
    """What the master's float32 runs as; one for a graph and all inside of its nodes.

    Attributes:
        usual: for most nodes.
        is_own: whether the node that is emitted now runs in the master's own types.
        own: fx nodes that hold the master's float32 as float32, where that is not usual.
    """

    usual: torch.dtype
    is_own: bool = False
    own: set[torch.fx.Node] = field(default_factory=set)


class GraphBuilder:
    """Builds one fx graph and the module that owns its weights; values are of any shape.

    Attributes:
        graph: the fx graph under construction.
        root: owner of parameters and buffers.
        floats: what the master's float32 runs as.
        constant_of: parameter or buffer name -> name of its constant in the master.
        depth: how many graphs this one is inside of.
        owners: who emits into which graph: this one and those inside of its nodes.
        anchor: the input whose device is the graph's, None where there is no input.
    """

    def __init__(self, float_dtype: torch.dtype) -> None:
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.floats = FloatTypes(float_dtype)
        self.constant_of: dict[str, str] = {}
        self._shared: dict[tuple[Any, ...], torch.fx.Node] = {}
        # By identity: an array may be read as several types, and is large to compare.
        self._registered: dict[tuple[int, torch.dtype], Tensor] = {}
        # Holds registered constants, so that an id is never used twice.
        self._constant_at: dict[torch.fx.Node, Constant] = {}
        self.anchor: torch.fx.Node | None = None
        self._folded: dict[torch.fx.Node, Any] = {}
        self._named: dict[str, Sym] = {}
        self.owners: dict[torch.fx.Graph, GraphBuilder] = {self.graph: self}
        self.depth = 0

    @property
    def float_dtype(self) -> torch.dtype:
        """What the master's float32 runs as in the node that is emitted now."""
        return torch.float32 if self.floats.is_own else self.floats.usual

    @contextmanager
    def own_types(self) -> Iterator[None]:
        """Emit a node in the master's own types."""
        self.floats.is_own = True
        try:
            yield
        finally:
            self.floats.is_own = False

    def mark_own(self, value: AnyValue) -> None:
        """Remember that a value was emitted in the master's own types."""
        if isinstance(value, Tensor) and value.dtype == torch.float32:
            self.floats.own.add(value.node)

    def running(self, value: AnyValue) -> AnyValue:
        """Return a value in the type that the node emitted now takes it in."""
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        if (value.node in self.floats.own) == self.floats.is_own:
            return value
        return value.like(self.method("to", value, self.dtype(torch.float32)))

    def inputs(self, specs: Sequence[InputSpec]) -> list[Tensor]:
        """Add the graph's inputs, in order."""
        nodes = [add_placeholder(self.graph, spec.name) for spec in specs]
        # Tensors made in the graph follow the first input to its device.
        self.anchor = next(iter(nodes), None)
        return [
            Tensor(self._carried(node, spec.dtype), spec.dtype, self._named_dims(node, spec.axes))
            for node, spec in zip(nodes, specs, strict=True)
        ]

    def _carried(self, node: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
        return self._between(node, interface(dtype), carrier(dtype))

    def output(self, value: Value) -> torch.fx.Node:
        """Return a value as an output of the graph has it."""
        x = self.tensor(value)
        return self._between(x.node, carrier(x.dtype), interface(x.dtype))

    def _between(
        self, node: torch.fx.Node, source: torch.dtype, target: torch.dtype
    ) -> torch.fx.Node:
        """Change between what a carried type is outside and inside of the graph."""
        if source == target:
            return node
        # Types of one size share their bits; where sizes differ the values are the same.
        return self.method("view" if source.itemsize == target.itemsize else "to", node, target)

    def _named_dims(self, node: torch.fx.Node, axes: Sequence[int | str]) -> Dims:
        """Axes of one name have one size in every call, so they become one symbol."""
        dims: list[HostInt] = []
        for position, axis in enumerate(axes):
            if isinstance(axis, int):
                dims.append(axis)
            # One symbol for both, so that an export need not guard that they are equal.
            elif axis and axis in self._named:
                dims.append(self._named[axis])
            else:
                size = self._size(node, position)
                if axis:
                    self._named[axis] = size
                dims.append(size)
        return tuple(dims)

    def declared(self, axis: int | str) -> HostInt | None:
        """Return the size of an axis declared by number or by an input axis's name."""
        return axis if isinstance(axis, int) else self._named.get(axis)

    def _size(self, node: torch.fx.Node, axis: int) -> Sym:
        return Sym(self.shared(torch.ops.aten.sym_size.int, node, axis), self.shared, is_size=True)

    def call(self, function: Callable[..., Any], *args: object, **kwargs: object) -> torch.fx.Node:
        """Emit `function(*args, **kwargs)`.

        Args:
            function: of torch, of Python's `operator`, or a kernel of this package.
            *args: values, nodes or constants, at any depth of lists and tuples.
            **kwargs: the same, by name.
        """
        return self.graph.call_function(function, self._arguments(args), self._arguments(kwargs))

    def method(self, name: str, *args: object, **kwargs: object) -> torch.fx.Node:
        """Emit `args[0].name(*args[1:], **kwargs)`.

        Args:
            name: of a method of torch.Tensor.
            *args: the tensor, then the method's own arguments.
            **kwargs: of the method.
        """
        return self.graph.call_method(name, self._arguments(args), self._arguments(kwargs))

    def shared(self, function: Callable[..., Any], *args: object) -> torch.fx.Node:
        """Emit a pure scalar function once per set of arguments, as far out as they are known."""
        arguments: Any = map_aggregate(args, _argument)  # type: ignore[type-var]
        # The device or type of a tensor is no number: it cannot cross a graph's edge.
        owner = self if function is getattr else self._innermost(arguments)
        return owner.emit_shared(function, arguments)

    def _innermost(self, arguments: Any) -> GraphBuilder:
        nodes: list[torch.fx.Node] = []
        map_arg(arguments, nodes.append)
        owners = [self.owners[node.graph] for node in nodes]
        return max(owners, key=lambda owner: owner.depth, default=self)

    def emit_shared(self, function: Callable[..., Any], args: Any) -> torch.fx.Node:
        """Emit a pure scalar function into this very graph, once per set of arguments."""
        arguments = self._arguments(args)
        # 1 and True are equal keys in Python but not the same argument.
        key = (function, arguments, tuple(type(a) for a in arguments))
        if key not in self._shared:
            self._shared[key] = self.graph.call_function(function, arguments)
        return self._shared[key]

    def _arguments(self, args: Any) -> Any:
        return map_arg(map_aggregate(args, _argument), self.here)

    def here(self, node: torch.fx.Node) -> torch.fx.Node:
        """Return the node that stands for a node in this graph."""
        return node

    def add_module(self, name: str, module: torch.nn.Module) -> torch.fx.Node:
        """Add a graph that a node of this one calls."""
        attribute = self._free_name(name)
        self.root.add_module(attribute, module)
        return self.graph.get_attr(attribute)

    def dim(self, tensor: Tensor, axis: int) -> HostInt:
        """Return the size of one axis, asking the tensor where it is not known yet."""
        known = tensor.dims[axis]
        return self._size(tensor.node, axis % tensor.rank) if known is None else known

    def fold(self, node: torch.fx.Node) -> Any:
        """Return what a node gives where it depends on small constants only, else None."""
        return fold(node, self._folded, self.leaf)

    def leaf(self, node: torch.fx.Node) -> Any:
        """Return what a constant holds in the master's own type, None for any other node."""
        constant = self._constant_at.get(node)
        if constant is not None:
            return carried_tensor(constant.array, constant.dtype)
        is_float_like = node.op == "get_attr" and node.target == "float_like"
        return torch.zeros(()) if is_float_like else None

    def device(self) -> torch.fx.Node:
        """Return the device on which the graph makes tensors."""
        return self.shared(getattr, self.anchor or self.float_like(), "device")

    def dtype(self, dtype: torch.dtype) -> torch.dtype | torch.fx.Node:
        """Return a dtype argument: the master's float32 follows the module's float type.

        A node, so that `.half()` and `.double()` on the module also move casts and constants.
        """
        if dtype != torch.float32 or self.floats.is_own:
            return carrier(dtype)
        return self.shared(getattr, self.float_like(), "dtype")

    def running_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type that a master's dtype runs as when the module is not moved."""
        return self.float_dtype if dtype == torch.float32 else carrier(dtype)

    def number(self, value: float, dtype: torch.dtype) -> float:
        """Return a Python number fit to stand beside a tensor of the master's dtype."""
        return saturated(value, self.running_dtype(dtype))

    def tensor(self, value: Value) -> Tensor:
        """Return the value on the device, materialising it there when it is not."""
        match value:
            case Tensor():
                return value
            case Constant():
                return self.weight(value)
            case HostValue():
                return self._tensor_from_host(value)

    def weight(self, constant: Constant) -> Tensor:
        """Return a constant as a parameter or buffer of the module."""
        key = id(constant), self.running_dtype(constant.dtype)
        if key not in self._registered:
            node = self._register(constant.name, self._running(constant))
            self._constant_at[node] = constant
            self._registered[key] = Tensor(node, constant.dtype, constant.dims)
        return self._registered[key]

    def _running(self, constant: Constant) -> torch.Tensor:
        data = carried_tensor(constant.array, constant.dtype)
        wanted = self.running_dtype(constant.dtype)
        if data.dtype == wanted:
            return data
        limits = torch.finfo(wanted)
        # clamp keeps infinities out of range too, so they are put back.
        clamped = data.double().clamp(limits.min, limits.max)
        return torch.where(data.isinf(), data.double(), clamped).to(wanted)

    def _register(self, name: str, data: torch.Tensor) -> torch.fx.Node:
        attribute = self._free_name(name)
        if data.is_floating_point():
            self.root.register_parameter(attribute, torch.nn.Parameter(data, requires_grad=False))
        else:
            self.root.register_buffer(attribute, data)
        self.constant_of[attribute] = name
        return self.graph.get_attr(attribute)

    def _free_name(self, name: str) -> str:
        base = _identifier(name, "constant")
        names = chain([base], (f"{base}_{number}" for number in count(1)))
        return next(each for each in names if not hasattr(self.root, each))

    def _tensor_from_host(self, value: HostValue) -> Tensor:
        items: list[HostInt] = list(value.data.reshape(-1))
        if not any(isinstance(item, Sym) for item in items):
            array = value.data.astype(numpy_dtype_from_torch(value.dtype))
            return self.weight(Constant("shape_constant", np.asarray(array), value.dtype))
        nodes = [self._scalar(item, value.dtype) for item in items]
        if value.data.ndim == 0:
            return Tensor(nodes[0], value.dtype, ())
        node = self.call(torch.stack, nodes)
        if value.data.ndim > 1:
            node = self.call(torch.reshape, node, list(value.dims))
        return Tensor(node, value.dtype, value.dims)

    def _scalar(self, item: HostInt, dtype: torch.dtype) -> torch.fx.Node:
        return self.call(torch.full, (), item, dtype=dtype, device=self.device())

    def float_like(self) -> torch.fx.Node:
        """Return an empty tensor of the type that the master's float32 runs as."""
        # Holds no data: it exists to be moved with the module, for its type.
        if not hasattr(self.root, "float_like"):
            empty = torch.zeros((), dtype=self.floats.usual)
            self.root.register_buffer("float_like", empty, persistent=False)
            self._float_node = self.graph.get_attr("float_like")
        return self._float_node


def _identifier(name: str, otherwise: str) -> str:
    """Return a name that Python can spell: exporters number their values, "0" for one."""
    base = re.sub(r"\W", "_", name) or otherwise
    return f"{otherwise[0]}{base}" if base[0].isdigit() or iskeyword(base) else base


def add_placeholder(graph: torch.fx.Graph, name: str) -> torch.fx.Node:
    """Add an input, named after a value of the model where that name is free."""
    base = _identifier(name, "input")
    # fx makes each input an argument of forward(), whose first one is `self`.
    node = graph.placeholder("input_self" if base == "self" else base)
    # The name that fx gave it: one that was taken would overwrite another node's argument.
    node.target = node.name
    return node


def _argument(value: Any) -> Any:
    match value:
        case Tensor() | Sym():
            return value.node
        case HostValue() | Constant():
            raise TypeError(
                f"{type(value).__name__} must be made a tensor before it is an argument"
            )
        case np.generic():
            return value.item()
        case _:
            return value
