"""Where a value is held while a graph is imported: on the device, or on the host.

* `Tensor`: data on the graph's device, an fx node.
* `HostValue`: integers and booleans that describe shapes. They are Python ints, or
  `Sym` where they depend on a shape of this call; they never touch a device.
* `Constant`: an array of the master, in neither place yet: small integers
  are read by the host, the rest becomes a parameter or buffer at first use.

Values are of any shape.

Legend for dims: one entry per axis; an int where it is the same in every call, a
`Sym` where it is a size the host has computed already, None where it is not known yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compiler_worker.onnx_to_fx.dtypes import CARRIED
from compiler_worker.onnx_to_fx.sym import HostInt, Sym

Dims: TypeAlias = tuple[HostInt | None, ...]

# Larger integer constants are data (position ids, token tables), not shape arithmetic.
MAX_HOST_ELEMENTS = 64


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value on the device.

    Attributes:
        node: the fx node that computes it.
        dtype: element type in the master; `GraphBuilder.dtype` is what it runs as.
        dims: what is known of the size of each axis.
    """

    node: torch.fx.Node
    dtype: torch.dtype
    dims: Dims

    @property
    def rank(self) -> int:
        """Number of axes, always known at import."""
        return len(self.dims)

    @property
    def is_float(self) -> bool:
        """Whether the element type is a floating-point type."""
        return self.dtype.is_floating_point

    @property
    def static(self) -> tuple[int | None, ...]:
        """Size per axis where it is the same in every call, else None."""
        return tuple(None if isinstance(size, Sym) else size for size in self.dims)

    def like(self, node: torch.fx.Node, *, dtype: torch.dtype | None = None) -> Tensor:
        """Return a value of the same dims, computed by `node`."""
        return replace(self, node=node, dtype=dtype or self.dtype)

    def resized(self, node: torch.fx.Node, axis: int, *sizes: HostInt | None) -> Tensor:
        """Return a value, computed by `node`, that has other axes in place of one, or none.

        Args:
            node: the fx node that computes it.
            axis: from 0.
            *sizes: of the axes in its place.
        """
        dims = (*self.dims[:axis], *sizes, *self.dims[axis + 1 :])
        return replace(self, node=node, dims=dims)


@dataclass(frozen=True, slots=True, eq=False)
class HostValue:
    """Shape arithmetic kept on the host: an object array of int, bool or `Sym`."""

    data: NDArray[np.object_]
    dtype: torch.dtype

    @property
    def dims(self) -> tuple[int, ...]:
        """Size per axis."""
        return tuple(self.data.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """An array of the master.

    Attributes:
        name: initializer or value name; names the parameter it becomes.
        array: the data, by reference.
        dtype: element type in the master.
    """

    name: str
    array: NDArray[np.generic]
    dtype: torch.dtype

    @property
    def dims(self) -> tuple[int, ...]:
        """Size per axis."""
        return tuple(self.array.shape)

    @property
    def is_hostable(self) -> bool:
        """Whether the host may read it as shape arithmetic."""
        is_integer = not self.dtype.is_floating_point and self.dtype not in CARRIED
        return is_integer and self.array.size <= MAX_HOST_ELEMENTS


Value: TypeAlias = Tensor | HostValue | Constant


@dataclass(frozen=True, slots=True, eq=False)
class SequenceValue:
    """A sequence: it exists at import only, as the list of its elements."""

    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OptionalValue:
    """An optional: it exists at import only, as its element or None."""

    item: Value | SequenceValue | None


AnyValue: TypeAlias = Value | SequenceValue | OptionalValue


def host_from_list(items: list[HostInt]) -> HostValue:
    """Return a 1-d int64 host value."""
    data = np.empty(len(items), dtype=object)
    data[:] = items
    return HostValue(data, torch.int64)


def host_elementwise(
    function: Callable[..., Any], *arrays: NDArray[np.object_], dtype: torch.dtype
) -> HostValue:
    """Apply a function of Python integers element by element, with broadcasting.

    Args:
        function: of Python integers or `Sym`, one for each array.
        *arrays: of objects, with shapes that broadcast.
        dtype: element type of the result in the master.
    """
    data = np.frompyfunc(function, len(arrays), 1)(*arrays)
    # numpy gives the element itself where there is no axis.
    return HostValue(np.asarray(data, dtype=object), dtype)


def unknown(rank: int) -> Dims:
    """Return dims of which only the count is known."""
    return (None,) * rank


def broadcast_dims(*shapes: Dims) -> Dims:
    """Return what is known of the dims of a multidirectional broadcast."""
    rank = max(len(dims) for dims in shapes)
    padded = [(1,) * (rank - len(dims)) + dims for dims in shapes]
    return tuple(_broadcast_axis(axis) for axis in zip(*padded, strict=True))


def _broadcast_axis(sizes: tuple[HostInt | None, ...]) -> HostInt | None:
    others = {size for size in sizes if size != 1}
    if not others:
        return 1
    # A static size other than 1 is the result whatever the dynamic ones are.
    fixed = [size for size in others if isinstance(size, int)]
    if fixed:
        return fixed[0]
    # Two different symbols: either may be 1 in some call.
    return others.pop() if len(others) == 1 else None
