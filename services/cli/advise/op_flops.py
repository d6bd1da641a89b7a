"""FLOPs of products, convolutions, attention and recurrences; all other ops move memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

Shape = tuple[int, ...]
PRODUCTS = frozenset({"MatMul", "MatMulInteger", "QLinearMatMul", "Gemm", "Attention", "Einsum"})
CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "QLinearConv", "ConvTranspose"})
RECURRENCES = frozenset({"LSTM", "GRU", "RNN"})


def op_flops(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> float | None:
    """FLOPs of an op that is in one of the sets; None where a shape that it needs is not known.

    Args:
        node: of the graph.
        shapes: by name of the value; those that are not known are left out.
    """
    import onnx

    given = [shapes.get(name, ()) for name in node.input]
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    try:
        made = shapes[node.output[0]]
        return 2.0 * _multiplications(node.op_type, given, made, attributes)
    except (KeyError, IndexError, ValueError):
        return None


def _multiplications(
    op: str, given: Sequence[Shape], made: Shape, attributes: Mapping[str, Any]
) -> int:
    match op:
        case "Gemm":
            return prod(made) * given[0][0 if attributes.get("transA") else 1]
        case "Conv" | "ConvInteger" | "QLinearConv":
            # Weights [channels out, channels in / groups, window].
            return prod(made) * prod(given[3 if op == "QLinearConv" else 1][1:])
        case "ConvTranspose":
            return prod(given[0]) * prod(given[1][1:])
        case "Attention":
            # Keys [batch, heads, time, depth], or without heads; those of the past before them.
            past = given[4][-2] if len(given) > 4 and given[4] else 0
            return (prod(given[0]) + prod(made)) * (given[1][-2] + past)
        case "LSTM" | "GRU" | "RNN":
            # Inputs [time, batch, depth], weights of inputs and of the state.
            return prod(given[0][:2]) * (prod(given[1]) + prod(given[2]))
        case "Einsum":
            terms = attributes["equation"].decode().replace(" ", "").partition("->")[0].split(",")
            pairs = zip(terms, given, strict=True)
            return prod({c: n for t, s in pairs for c, n in zip(t, s, strict=True)}.values())
        case _:
            # Of weights alone where the shape of what they multiply is not known.
            return prod(made) * (given[0][-1] if given[0] else given[1][-2])
