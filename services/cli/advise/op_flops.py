"""FLOPs of the ops that matter: products, convolutions, attention and recurrences.

All others move memory. A multiplication and an addition are two FLOPs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import onnx

Shape = tuple[int, ...]
_Formula = Callable[[Sequence[Shape], Shape, Mapping[str, Any]], float]


def _product(given: Sequence[Shape], made: Shape, _: Mapping[str, Any]) -> float:
    # Of weights alone where the shape of what they multiply is not known.
    return 2.0 * math.prod(made) * (given[0][-1] if given[0] else given[1][-2])


def _gemm(given: Sequence[Shape], made: Shape, attributes: Mapping[str, Any]) -> float:
    return 2.0 * math.prod(made) * given[0][0 if attributes.get("transA") else 1]


def _convolution(given: Sequence[Shape], made: Shape, _: Mapping[str, Any]) -> float:
    # Weights [channels out, channels in / groups, window]; quantised ones have scales before them.
    weights = given[3 if len(given) > 3 and len(given[3]) > 2 else 1]
    return 2.0 * math.prod(made) * math.prod(weights[1:])


def _transposed(given: Sequence[Shape], _: Shape, __: Mapping[str, Any]) -> float:
    return 2.0 * math.prod(given[0]) * math.prod(given[1][1:])


def _attention(given: Sequence[Shape], made: Shape, _: Mapping[str, Any]) -> float:
    """Scores, and values by them; inputs [batch, heads, time, depth], or heads in the last."""
    past = given[4][-2] if len(given) > 4 and given[4] else 0
    return 2.0 * (math.prod(given[0]) + math.prod(made)) * (given[1][-2] + past)


def _recurrence(given: Sequence[Shape], _: Shape, __: Mapping[str, Any]) -> float:
    """Inputs [time, batch, depth], weights of the inputs and of the state."""
    steps = math.prod(given[0][:2])
    return 2.0 * steps * (math.prod(given[1]) + math.prod(given[2]))


def _einsum(given: Sequence[Shape], _: Shape, attributes: Mapping[str, Any]) -> float:
    terms = attributes["equation"].decode().replace(" ", "").partition("->")[0].split(",")
    sizes = {
        letter: size
        for term, shape in zip(terms, given, strict=True)
        for letter, size in zip(term, shape, strict=True)
    }
    return 2.0 * math.prod(sizes.values())


_FORMULAS: Final[Mapping[str, _Formula]] = {
    "MatMul": _product,
    "MatMulInteger": _product,
    "QLinearMatMul": _product,
    "Gemm": _gemm,
    "Conv": _convolution,
    "ConvInteger": _convolution,
    "QLinearConv": _convolution,
    "ConvTranspose": _transposed,
    "Attention": _attention,
    "LSTM": _recurrence,
    "GRU": _recurrence,
    "RNN": _recurrence,
    "Einsum": _einsum,
}


def is_product(node: onnx.NodeProto) -> bool:
    """Whether an op has a formula here."""
    return node.domain in ("", "ai.onnx") and node.op_type in _FORMULAS


def op_flops(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> float | None:
    """FLOPs of a product; None where a shape that it needs is not known.

    Args:
        node: an op that `is_product`.
        shapes: by name of the value; those that are not known are left out.
    """
    import onnx

    given = [shapes.get(name, ()) for name in node.input]
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    try:
        return _FORMULAS[node.op_type](given, shapes[node.output[0]], attributes)
    except (KeyError, IndexError, ValueError):
        return None
