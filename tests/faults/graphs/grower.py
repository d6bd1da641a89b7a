"""Grows a graph node by node: each is evaluated at every size as it is added.

What a node gives is known before the next one is chosen, so a family of ops asks only whether
ranks fit or a divisor is zero, and what ONNX's own evaluator cannot compute is not added. Shapes
are known by example: an axis is static where all sizes give the same, and a parameter that must
follow the sizes is written by the graph itself, from `Shape`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from services.contracts.kserve.tensors import Array
from tests.faults.graphs.evaluator import OPS

# Rounding is not on the way of numbers with so few bits: every order of a sum gives the same.
_EXACT_STEP, _EXACT_LARGEST = 2.0**-8, 2.0**11
# Of half precision fewer are left.
_EXACT_IN_16_BITS = {np.float16: (2.0**-3, 2.0**7), ml_dtypes.bfloat16: (2.0**-1, 2.0**6)}
_MOST_ELEMENTS, _LARGEST = 4096, 1e6
_INT64 = np.iinfo(np.int64)


# Of what is no number they make what they like.
_BLIND_TO_NAN = re.compile(
    "Max|Min|Relu|Clip|Attention|TopK|Unique|Quantize|Selu|Elu|Celu|Shrink|Resize|LpPool"
)


class DroppedError(Exception):
    """What was tried fits no value of the graph; it is taken back."""


# What rounding may do to a number of a type, many times over.
_NOISE = {np.float16: 2e-2, ml_dtypes.bfloat16: 1e-1}
_NOISE_OF_REST = 1e-4


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the graph.

    Attributes:
        arrays: by setting.
        noise: how far two right answers may lie apart, relative to `scale`; 0 where no
            rounding is in it, so that it may decide of something.
        scale: the largest number that rounding was done on, here or on the way.
    """

    name: str
    arrays: tuple[Array, ...]
    noise: float = 0.0
    scale: float = 0.0

    @property
    def is_exact(self) -> bool:
        return self.noise == 0

    @property
    def rank(self) -> int:
        return self.arrays[0].ndim

    @property
    def dtype(self) -> Any:
        return self.arrays[0].dtype

    @property
    def type(self) -> int:
        return int(helper.np_dtype_to_tensor_dtype(self.dtype))

    @property
    def is_float(self) -> bool:
        return self.dtype.kind not in "biuO" and "int" not in self.dtype.name

    def sizes(self, axis: int) -> tuple[int, ...]:
        """Of one axis, by size setting."""
        return tuple(array.shape[axis] for array in self.arrays)

    def static(self, axis: int) -> int | None:
        """The size of an axis where it is always the same."""
        sizes = set(self.sizes(axis))
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [array.shape for array in self.arrays]


@dataclass
class Grower:
    """A graph that grows.

    Attributes:
        sizes: of the named dims, one dict for each setting.
        values: what later nodes may read.
        ends: values that no node may read.
        outer: values of the graph around this one.
    """

    rng: np.random.Generator
    opset: int
    sizes: Sequence[dict[str, int]]
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[Value] = field(default_factory=list)
    inputs: list[tuple[Value, tuple[int | str, ...]]] = field(default_factory=list)
    ends: list[Value] = field(default_factory=list)
    outer: Sequence[Value] = ()
    prefix: str = ""

    # What is drawn

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def int(self, low: int, high: int) -> int:
        """Of low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def one(self, choices: Sequence[Any]) -> Any:
        if not choices:
            raise DroppedError
        return choices[self.int(0, len(choices) - 1)]

    def pick(self, wanted: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value that fits; late ones more often, so that graphs grow deep."""
        # An integer that rounding decides of would decide of more.
        found = [v for v in self.values if wanted(v) and (v.is_exact or v.is_float)]
        return self.one(found[-3:] if self.chance(0.6) else found)

    def taken(self, op_type: str, wanted: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value that an op takes as its first input."""
        schema = self.schema(op_type)
        return self.pick(lambda v: _onnx_type(v) in schema.inputs[0].types and wanted(v))

    # What is added

    def name(self) -> str:
        number = len(self.nodes) + len(self.constants) + len(self.inputs)
        return f"{self.prefix}v{number}_{len(self.values)}"

    def input(self, dims: tuple[int | str, ...], draw: Callable[[tuple[int, ...]], Array]) -> Value:
        shapes = [tuple(s[d] if isinstance(d, str) else d for d in dims) for s in self.sizes]
        value = Value(f"{self.prefix}x{len(self.inputs)}", tuple(map(draw, shapes)))
        self.inputs.append((value, dims))
        self.values.append(value)
        return value

    def constant(self, array: Any, dtype: Any = None) -> Value:
        """An initializer."""
        array = np.asarray(array, dtype)
        value = Value(f"{self.name()}_c", (array,) * len(self.sizes))
        self.constants.append(value)
        return value

    def ints(self, wanted: Sequence[Sequence[int]], dtype: Any = np.int64) -> Value:
        """A list of integers, one for each setting: constant, or computed from sizes."""
        columns = list(zip(*wanted, strict=True))
        if all(len(set(column)) == 1 for column in columns) and self.chance(0.9):
            return self.constant(np.array(wanted[0], dtype).reshape(len(columns)))
        parts = [self._of_sizes(column) for column in columns]
        if len(parts) == 1:
            made = parts[0]
        else:
            (made,) = self.add("Concat", parts, axis=0)
        if dtype != np.int64:
            (made,) = self.add("Cast", [made], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        return made

    def _of_sizes(self, column: Sequence[int]) -> Value:
        """One element that is a number more than a size, or than a size below zero."""
        if len(set(column)) == 1 and self.chance(0.8):
            return self.constant([column[0]], np.int64)
        for sign in (1, -1):
            for value in self.values[::-1]:
                for axis in range(value.rank):
                    rest = {c - sign * n for c, n in zip(column, value.sizes(axis), strict=True)}
                    # Slices are drawn to the last of all integers.
                    if len(rest) == 1 and _INT64.min <= min(rest) <= _INT64.max:
                        return self._offset(value, axis, sign, rest.pop())
        raise DroppedError

    def _offset(self, value: Value, axis: int, sign: int, rest: int) -> Value:
        (shape,) = self.add("Shape", [value])
        (size,) = self.add("Gather", [shape, self.constant([axis], np.int64)], axis=0)
        if sign < 0:
            (size,) = self.add("Neg", [size])
        return self.add("Add", [size, self.constant([rest], np.int64)])[0] if rest else size

    def add(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        *,
        outputs: int = 1,
        exact: bool = True,
        outer: Iterable[Value] = (),
        inner: Iterable[Value] = (),
        **attributes: Any,
    ) -> list[Value]:
        """Add a node and what it gives; dropped where it cannot be evaluated.

        Args:
            op_type: of ai.onnx.
            inputs: None where left out.
            outputs: how many.
            exact: no rounding, where there is none in the inputs.
            outer: values that graphs inside of the node read.
            inner: values that these make, and the node gives.
            **attributes: of the node; None where left out.
        """
        base = self.name()
        names = [f"{base}_{i}" for i in range(outputs)]
        given = [value for value in inputs if value is not None]
        if _BLIND_TO_NAN.search(op_type) and any(map(_has_nan, given)):
            raise DroppedError
        self._check_types(op_type, inputs)
        known = {k: v for k, v in attributes.items() if v is not None}
        node = helper.make_node(op_type, [v.name if v else "" for v in inputs], names, **known)
        read = {value.name: value for value in (*given, *outer)}
        results = self._evaluated(node, list(read.values()))
        made = [
            _checked(n, r, exact, [*given, *inner]) for n, r in zip(names, results, strict=True)
        ]
        self.nodes.append(node)
        self.values += made
        return made

    def schema(self, op_type: str) -> defs.OpSchema:
        try:
            return defs.get_schema(op_type, self.opset, "")
        except defs.SchemaError:
            raise DroppedError from None

    def _check_types(self, op_type: str, inputs: Sequence[Value | None]) -> None:
        schema = self.schema(op_type)
        bound: dict[str, str] = {}
        for index, value in enumerate(inputs):
            formal = schema.inputs[min(index, len(schema.inputs) - 1)]
            if value is None:
                continue
            found = _onnx_type(value)
            is_bound = formal.is_homogeneous or index < len(schema.inputs) - 1
            wanted = bound.setdefault(formal.type_str, found) if is_bound else found
            if found not in formal.types or found != wanted:
                raise DroppedError

    def _evaluated(self, node: onnx.NodeProto, given: Sequence[Value]) -> list[tuple[Any, ...]]:
        infos = [helper.make_empty_tensor_value_info(v.name) for v in given]
        ends = [helper.make_empty_tensor_value_info(n) for n in node.output]
        graph = helper.make_graph([node], "one", infos, ends)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                evaluator = ReferenceEvaluator(graph, opsets={"": self.opset}, new_ops=list(OPS))
                feeds = [{v.name: v.arrays[i] for v in given} for i in range(len(self.sizes))]
                rows = [evaluator.run(None, each) for each in feeds]
        except Exception as error:  # whatever numpy raises: the node fits no such values
            raise DroppedError from error
        return list(zip(*rows, strict=True))

    def tried(self, step: Callable[[Grower], object]) -> bool:
        """Take a step; False where it was dropped, and all that it had added with it."""
        parts = (self.values, self.nodes, self.constants, self.inputs, self.ends)
        lengths = [len(part) for part in parts]
        try:
            step(self)
        except DroppedError:
            for part, length in zip(parts, lengths, strict=True):
                del part[length:]
            return False
        return True


def _checked(name: str, results: Sequence[Any], is_exact: bool, given: Sequence[Value]) -> Value:
    arrays = tuple(np.asarray(result) for result in results)
    first = arrays[0]
    if any(a.dtype != first.dtype or a.ndim != first.ndim for a in arrays):
        raise DroppedError
    if first.dtype.kind in "OUSc" or any(a.size > _MOST_ELEMENTS for a in arrays):
        raise DroppedError
    noise = max((v.noise for v in given), default=0.0)
    scale = max((v.scale for v in given), default=0.0)
    if not Value(name, arrays).is_float:
        return Value(name, arrays, noise, scale)
    largest = max(_largest(array) for array in arrays)
    if largest > _LARGEST:
        raise DroppedError
    if not is_exact or noise or not all(map(_is_short, arrays)):
        noise = max(noise, _NOISE.get(first.dtype.type, _NOISE_OF_REST))
        scale = max(scale, largest, *(_largest(a) for v in given for a in v.arrays))
    return Value(name, arrays, noise, scale)


def _has_nan(value: Value) -> bool:
    return value.is_float and any(np.isnan(a.astype(np.float64)).any() for a in value.arrays)


def _largest(array: Array) -> float:
    if array.dtype == np.bool_:
        return 1.0
    wide = array.astype(np.float64)
    return float(np.abs(wide[np.isfinite(wide)]).max(initial=0))


def _is_short(array: Array) -> bool:
    """Whether the numbers have so few bits that sums and products of them are exact."""
    step, largest = _EXACT_IN_16_BITS.get(array.dtype.type, (_EXACT_STEP, _EXACT_LARGEST))
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        return bool(np.all((np.abs(wide) <= largest) & (wide % step == 0)))


def _onnx_type(value: Value) -> str:
    name = onnx.TensorProto.DataType.Name(value.type).lower()
    return f"tensor({name})"


def initializer(value: Value) -> onnx.TensorProto:
    """A constant as the file holds it."""
    return numpy_helper.from_array(value.arrays[0], value.name)
