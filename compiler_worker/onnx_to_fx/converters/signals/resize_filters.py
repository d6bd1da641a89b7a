"""What Resize interpolates with, narrow or wide, and sizes that keep an aspect ratio."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch

from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym
from compiler_worker.onnx_to_fx.values import Tensor


def kept_aspect_ratio(
    op: Op, sizes: Sequence[HostInt], wanted: Sequence[HostInt], policy: str
) -> tuple[float, list[int]]:
    """Return the one scale for all axes, and the sizes it gives, halves rounded up.

    Args:
        op: the node.
        sizes: of the input, one per resized axis.
        wanted: sizes that the node asks for, in the same order.
        policy: `not_larger` or `not_smaller`.

    Raises:
        UnsupportedGraphError: a size is dynamic or 0, or another policy.
    """
    known = [size for size in (*sizes, *wanted) if not isinstance(size, Sym)]
    if len(known) < len(sizes) + len(wanted) or 0 in known[: len(sizes)]:
        raise op.refuse(f"keep_aspect_ratio_policy '{policy}' needs static sizes")
    if policy not in ("not_larger", "not_smaller"):
        raise op.refuse(f"keep_aspect_ratio_policy '{policy}' is not translated")
    before = known[: len(sizes)]
    after = known[len(sizes) :]
    ratios = [target / size for size, target in zip(before, after, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return scale, [int(scale * size + 0.5) for size in before]


def emit_filter(
    op: Op, x: Tensor, axis: int, coordinates: torch.fx.Node, scale: float, *, is_cubic: bool
) -> torch.fx.Node:
    """Emit a weighted sum of neighbours along an axis.

    At a scale below 1 they reach as far as one output element does in the input.

    Args:
        op: the node.
        x: of any rank.
        axis: the one that is resized.
        coordinates: float64 [output size], a place of the input for each output element.
        scale: output elements per input element; 1 and more for the nearest two, or four.
        is_cubic: cubic, else linear.
    """
    scale = min(scale, 1.0)
    graph = op.graph
    # Where the input is made smaller the filter is wider: by 1 / scale to either side.
    first = math.floor(-(2 if is_cubic else 1) / scale) + 1
    reach = op.call(torch.arange, first, 2 - first, dtype=torch.float64, device=graph.device())
    floor = op.call(torch.floor, coordinates)
    place = op.call(torch.unsqueeze, op.call(operator.sub, coordinates, floor), 1)
    distance = op.call(torch.abs, op.call(operator.mul, op.call(operator.sub, reach, place), scale))
    weights = _cubic(op, distance) if is_cubic else _linear(op, distance)
    index = op.call(operator.add, op.call(torch.unsqueeze, floor, 1), reach)
    last = graph.dim(x, axis) - 1
    if op.attr_int("exclude_outside"):
        inside = op.call(
            operator.and_, op.call(operator.ge, index, 0), op.call(operator.le, index, last)
        )
        weights = op.call(torch.where, inside, weights, 0.0)
    # Weights at whole pixels do not sum to 1 by themselves; ONNX divides by their sum too.
    total = op.call(torch.sum, weights, 1, keepdim=True)
    weights = op.method("to", op.call(operator.truediv, weights, total), graph.dtype(x.dtype))
    edge = op.method("to", op.call(torch.clamp, index, 0, last), torch.int64)
    taps = 2 - 2 * first
    picked = op.call(torch.index_select, x, axis, op.call(torch.reshape, edge, [-1]))
    picked = op.call(torch.unflatten, picked, axis, [-1, taps])
    column = op.call(torch.reshape, weights, [-1, taps] + [1] * (x.rank - axis - 1))
    return op.call(torch.sum, op.call(operator.mul, picked, column), axis + 1)


def _linear(op: Op, distance: torch.fx.Node) -> torch.fx.Node:
    return op.call(torch.clamp, op.call(torch.rsub, distance, 1.0), min=0.0)


def _cubic(op: Op, x: torch.fx.Node) -> torch.fx.Node:
    """Keys' kernel: one polynomial up to distance 1, another up to 2."""
    a = op.attr_float("cubic_coeff_a")
    outer = op.call(torch.where, op.call(operator.lt, x, 2), _far(op, x, a), 0.0)
    return op.call(torch.where, op.call(operator.le, x, 1), _near(op, x, a), outer)


def _near(op: Op, x: torch.fx.Node, a: float) -> torch.fx.Node:
    return _polynomial(op, x, (a + 2, -(a + 3), 0.0, 1.0))


def _far(op: Op, x: torch.fx.Node, a: float) -> torch.fx.Node:
    return _polynomial(op, x, (a, -5 * a, 8 * a, -4 * a))


def _polynomial(op: Op, x: torch.fx.Node, coefficients: tuple[float, ...]) -> torch.fx.Node:
    """Horner's rule; coefficients from the highest power down."""
    result = op.call(operator.mul, x, coefficients[0])
    for coefficient in coefficients[1:-1]:
        result = op.call(operator.mul, op.call(operator.add, result, coefficient), x)
    return op.call(operator.add, result, coefficients[-1])
