"""Which float32 values of a graph become narrow, decided in one walk from inputs to outputs.

The rule is that of autocast, known to hold for most networks: matrix products run narrow,
sums of many terms, norms, exponentials and powers run in float32, and everything between
follows its inputs. Three additions: a square written as a product and a division by what is
in float32 run in float32, because they are the inner part of a norm; what is computed from
integers alone (positions, masks) stays float32, because a narrow type cannot count to a long
sequence's end; and an op runs narrow only where ONNX allows that type at the model's opset.
"""

from collections.abc import Container, Iterable, Iterator
from enum import Enum
from typing import Protocol

import onnx_ir as ir
from onnx import defs

# Worth it: these decide the speed of an engine and accumulate in float32 on every device.
# Attention's softmax_precision stays as the master has it: fused kernels take their
# exponentials in float32 anyway, and TensorRT refuses the attribute.
NARROW_OPS = frozenset(
    {"Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"}
)
# Needed: a narrow type loses these results by overflow or by the length of the sum.
# LayerNormalization, RMSNormalization and GroupNormalization are not here: ONNX defines
# their statistics in float32 (stash_type) whatever the type of their input is.
_FULL_SUMS = frozenset(
    {
        "CumProd",
        "CumSum",
        "GlobalAveragePool",
        "GlobalLpPool",
        "InstanceNormalization",
        "LogSoftmax",
        "LpNormalization",
        "MeanVarianceNormalization",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMean",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Softmax",
    }
)
_FULL_OPS = _FULL_SUMS | {
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Cos",
    "Cosh",
    "Exp",
    "HannWindow",
    "Log",
    "Pow",
    "Reciprocal",
    "Sin",
    "Sinh",
    "Softplus",
    "Sqrt",
    "Tan",
}
# Sums of terms in no order that ONNX names: kernels differ in the last bits of each.
_SUMS = (
    NARROW_OPS
    | _FULL_SUMS
    | {
        "AveragePool",
        "BatchNormalization",
        "DFT",
        "DeformConv",
        "Det",
        "GridSample",
        "GroupNormalization",
        "LRN",
        "LayerNormalization",
        "LpPool",
        "RMSNormalization",
        "Resize",
        "RoiAlign",
        "STFT",
    }
)
# A row of a table is data, although the table is constant and the index an integer.
_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})


class Standing(Enum):
    """What is known about a float32 value."""

    CONSTANT = "from weights alone; takes the type of its users"
    POSITIONAL = "from integers and constants alone; float32"
    FULL = "data in float32"
    NARROW = "data in the narrow type"


class AnyPolicy(Protocol):
    """What is to become of a graph's float32 values; see `Policy`."""

    standings: dict[ir.Value, Standing]
    narrowed: dict[ir.Node, frozenset[str]]


class Policy:
    """Standings of all float32 values and, by node, the type variables that become narrow.

    Attributes:
        standings: by value; a value that is not float32 has none.
        narrowed: by node, names of its schema's type variables; absent when it stays.
    """

    def __init__(self, model: ir.Model, narrow: ir.DataType) -> None:
        """Decide for every node of the main graph."""
        self.standings: dict[ir.Value, Standing] = {}
        self.narrowed: dict[ir.Node, frozenset[str]] = {}
        self._allowed_type = f"tensor({'float16' if narrow.name == 'FLOAT16' else 'bfloat16'})"
        self._opset = model.opset_imports[""]
        for value in model.graph.initializers.values():
            self._stand((value,), Standing.CONSTANT)
        # The border casts them at once: a model's input is data, even when only shapes use it.
        self._stand(model.graph.inputs, Standing.NARROW)
        for node in model.graph:
            self._decide(node)

    def _decide(self, node: ir.Node) -> None:
        floats = [self.standings[v] for v in node.inputs if v in self.standings]
        standing = _standing(node, floats)
        if standing is Standing.NARROW and (_is_square(node) or self._is_full_quotient(node)):
            standing = Standing.FULL
        if standing is not Standing.NARROW:
            self._stand(node.outputs, standing)
            return
        variables = retypable(node, self._opset, self._allowed_type, self.standings)
        self.narrowed[node] = variables
        self._stand(node.outputs, Standing.FULL)
        self._stand(
            (v for v, variable in typed_outputs(node, self._opset) if variable in variables),
            Standing.NARROW,
        )

    def _is_full_quotient(self, node: ir.Node) -> bool:
        """Whether it divides by data or sums in float32, or multiplies with their inverse."""
        # What keeps a divisor from zero (1e-12) is zero in a narrow type, its inverse infinite.
        if node.op_type == "Div":
            return self._is_full(node.inputs[1])
        inverses = (value for value in node.inputs if _made_by(value) == "Reciprocal")
        return node.op_type == "Mul" and any(self._is_full(value) for value in inverses)

    def _is_full(self, value: ir.Value | None) -> bool:
        standing = None if value is None else self.standings.get(value)
        # Counts of valid positions have axes; roots of sizes, which scale attention, have none.
        is_count = value is not None and value.shape is not None and len(value.shape) > 1
        return standing is Standing.FULL or (standing is Standing.POSITIONAL and is_count)

    def _stand(self, values: Iterable[ir.Value], standing: Standing) -> None:
        for value in values:
            if value.dtype is ir.DataType.FLOAT:
                self.standings[value] = standing


def is_sum(node: ir.Node) -> bool:
    """Whether it adds up terms in an order of the kernel's own, so that its last bits are too."""
    return node.op_type in _SUMS


def retypable(
    node: ir.Node, opset: int, allowed_type: str, values: Container[ir.Value]
) -> frozenset[str]:
    """Names of type variables that ONNX lets be another type, of those that inputs bind.

    Args:
        node: of the graph.
        opset: of ai.onnx.
        allowed_type: in the words of ONNX's schemas: `tensor(float16)`.
        values: those in question; other inputs bind nothing.
    """
    schema = _schema(node, opset)
    if schema is None:
        return frozenset()
    allowed = {
        constraint.type_param_str
        for constraint in schema.type_constraints
        if allowed_type in constraint.allowed_type_strs
    }
    bound = {variable for value, variable in typed_inputs(node, opset) if value in values}
    return frozenset(allowed & bound)


def typed_inputs(node: ir.Node, opset: int) -> Iterator[tuple[ir.Value | None, str]]:
    """Each input with the type variable of the op's schema that governs it."""
    schema = _schema(node, opset)
    yield from _typed(node.inputs, schema.inputs if schema else ())


def typed_outputs(node: ir.Node, opset: int) -> Iterator[tuple[ir.Value, str]]:
    """Each output with the type variable of the op's schema that governs it."""
    schema = _schema(node, opset)
    for value, variable in _typed(node.outputs, schema.outputs if schema else ()):
        if value is not None:
            yield value, variable


def _typed(
    values: Iterable[ir.Value | None], formal: Iterable[defs.OpSchema.FormalParameter]
) -> Iterator[tuple[ir.Value | None, str]]:
    variables = [parameter.type_str for parameter in formal]
    for index, value in enumerate(values):
        # The last formal parameter of a variadic op stands for all that follow.
        yield value, variables[min(index, len(variables) - 1)] if variables else ""


def _standing(node: ir.Node, floats: list[Standing]) -> Standing:
    op_type = node.op_type
    is_data = Standing.FULL in floats or Standing.NARROW in floats
    if (op_type in _LOOKUPS or _is_small(node)) and floats and not is_data:
        return Standing.NARROW
    if not is_data:
        # Without a float input it is a cast or range of integers.
        is_constant = bool(floats) and Standing.POSITIONAL not in floats
        return Standing.CONSTANT if is_constant else Standing.POSITIONAL
    if op_type in _FULL_OPS:
        return Standing.FULL
    is_narrow = op_type in NARROW_OPS or Standing.NARROW in floats
    return Standing.NARROW if is_narrow else Standing.FULL


def _is_small(node: ir.Node) -> bool:
    """Whether it brings floats of eight bits back; its other input, the scale, is constant."""
    x = node.inputs[0] if node.op_type == "DequantizeLinear" else None
    return x is not None and x.dtype is ir.DataType.FLOAT8E4M3FN


def _is_square(node: ir.Node) -> bool:
    """Whether it is a power of two written as a product."""
    return node.op_type == "Mul" and node.inputs[0] is node.inputs[1]


def _made_by(value: ir.Value | None) -> str:
    producer = value.producer() if value is not None else None
    return producer.op_type if producer is not None else ""


def _schema(node: ir.Node, opset: int) -> defs.OpSchema | None:
    try:
        return defs.get_schema(node.op_type, opset, node.domain)
    except defs.SchemaError:
        return None
