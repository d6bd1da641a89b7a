"""Rewrites a float32 graph into one whose nodes carry the types they run in.

ONNX Runtime's own converter was tried first, and onnxconverter-common 1.16 has the same: it knows
no bfloat16, and keeping a shared
value in float32 makes it emit two nodes of one name, which its runtime then refuses.
"""

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from compiler_worker.precision.free_names import FreeNames
from compiler_worker.precision.limits import check_limits
from compiler_worker.precision.policy import (
    AnyPolicy,
    Policy,
    Standing,
    typed_inputs,
    typed_outputs,
)
from services.contracts.hardware.kinds import Precision

_NARROW_TYPE = {Precision.FP16: ir.DataType.FLOAT16, Precision.BF16: ir.DataType.BFLOAT16}


def typed_model(model: onnx.ModelProto, precision: Precision) -> onnx.ModelProto:
    """Type a float32 model for fp16 or bf16; inputs and outputs keep their types.

    Args:
        model: checked, its weights in memory; it is not changed.
        precision: fp32 returns the model itself.

    Raises:
        UnsupportedGraphError: control flow, or an opset without the narrow type.
    """
    if precision is Precision.FP32:
        return model
    typed = ir.from_proto(model)
    check_limits(typed, precision)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(typed)
    # Types of inner values are what everything here is decided by.
    passes.ShapeInferencePass()(typed)
    narrow = _NARROW_TYPE[precision]
    Rewriter(typed, Policy(typed, narrow), narrow, precision.value).run()
    passes.RemoveUnusedNodesPass()(typed)
    return ir.to_proto(typed)


class Rewriter:
    """One rewrite of one graph.

    Attributes:
        narrow: the type that takes float32's place.
        casts: cast value by original value and type, so that users share one cast.
    """

    def __init__(
        self, model: ir.Model, policy: AnyPolicy, narrow: ir.DataType, suffix: str
    ) -> None:
        """Take the graph of a model, which `run` changes in place.

        Args:
            model: with types of its inner values inferred.
            policy: decides which values become narrow.
            narrow: the type that takes float32's place.
            suffix: of the names of new values.
        """
        self.graph = model.graph
        self.opset = model.opset_imports[""]
        self.suffix = suffix
        self.narrow = narrow
        self.policy = policy
        self.casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self.names = FreeNames(model.graph)

    def run(self) -> None:
        """Retype all nodes; outputs keep their types."""
        self.retype()
        for index, value in enumerate(self.graph.outputs):
            if value.dtype is self.narrow and value in self.policy.standings:
                self.graph.outputs[index] = self._border_cast(value)

    def retype(self) -> None:
        """Retype all nodes, and outputs with them."""
        # A copy, because casts are inserted on the way.
        for node in tuple(self.graph):
            self._retype(node)

    def _retype(self, node: ir.Node) -> None:
        narrowed = self.policy.narrowed.get(node, frozenset())
        for index, (value, variable) in enumerate(typed_inputs(node, self.opset)):
            if value is not None and value in self.policy.standings:
                wanted = self.narrow if variable in narrowed else ir.DataType.FLOAT
                node.replace_input_with(index, self._as_type(value, wanted))
        for value, variable in typed_outputs(node, self.opset):
            if variable in narrowed and value in self.policy.standings:
                value.dtype = self.narrow

    def _as_type(self, value: ir.Value, wanted: ir.DataType) -> ir.Value:
        if value.dtype is wanted:
            return value
        key = (value, wanted)
        if key not in self.casts:
            is_constant = value.const_value is not None
            self.casts[key] = (
                self._constant(value) if is_constant else self._cast(self._bounded(value), wanted)
            )
        return self.casts[key]

    def _bounded(self, value: ir.Value) -> ir.Value:
        # Masks are filled with -3.4e38. A plain cast makes that -inf, and a row of -inf
        # makes softmax answer NaN where float32 gave a number.
        if self.policy.standings[value] not in (Standing.POSITIONAL, Standing.CONSTANT):
            return value
        limit = float(ir.DataType(self.narrow).max)
        bounds = [self._scalar(f"{value.name}_{end}", x) for end, x in self._ends(limit)]
        node = ir.node("Clip", [value, *bounds], name=f"{value.name}_{self.suffix}_clip")
        return self._insert_after(
            value, node, f"{value.name}_{self.suffix}_bounded", ir.DataType.FLOAT
        )

    @staticmethod
    def _ends(limit: float) -> tuple[tuple[str, float], tuple[str, float]]:
        return (("min", -limit), ("max", limit))

    def _cast(self, value: ir.Value, wanted: ir.DataType) -> ir.Value:
        name = f"{value.name}_{wanted.name.lower()}"
        node = ir.node("Cast", [value], {"to": wanted.value}, name=f"{name}_cast")
        return self._insert_after(value, node, name, wanted)

    def _insert_after(
        self, value: ir.Value, node: ir.Node, name: str, dtype: ir.DataType
    ) -> ir.Value:
        output = node.outputs[0]
        output.name = self.names.take(name)
        node.name = self.names.take(node.name or name)
        output.type = ir.TensorType(dtype)
        output.shape = value.shape
        producer = value.producer()
        if producer is None:
            self.graph.insert_before(self.graph[0], node)
        else:
            self.graph.insert_after(producer, node)
        return output

    def _constant(self, value: ir.Value) -> ir.Value:
        assert value.const_value is not None
        data = value.const_value.numpy()
        limits = (self.narrow.min, self.narrow.max)
        # Infinities are meant; finite numbers must not become infinite.
        bounded = np.where(np.isinf(data), data, np.clip(data, *limits))
        return self._initializer(f"{value.name}_{self.suffix}", bounded, self.narrow)

    def _scalar(self, name: str, number: float) -> ir.Value:
        return self._initializer(name, np.array(number, np.float32), ir.DataType.FLOAT)

    def _initializer(self, name: str, data: object, dtype: ir.DataType) -> ir.Value:
        array = np.asarray(data).astype(dtype.numpy())
        name = self.names.take(name)
        value = ir.Value(
            name=name,
            shape=ir.Shape(array.shape),
            type=ir.TensorType(dtype),
            const_value=ir.tensor(array, dtype=dtype, name=name),
        )
        self.graph.register_initializer(value)
        return value

    def _border_cast(self, value: ir.Value) -> ir.Value:
        name = value.name
        value.name = self.names.take(f"{name}_{self.suffix}")
        output = self._cast(value, ir.DataType.FLOAT)
        output.name = name
        return output
