"""Steps of optimizers, from ai.onnx.preview.training.

Inputs are a learning rate, a step count, then all tensors, all gradients and all states.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from compiler_worker.onnx_to_fx.converter_table import register
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import Tensor

_Updated = list[torch.fx.Node]


def _optimizer(
    num_states: int, update: Callable[[Op, list[Tensor]], _Updated]
) -> Callable[[Op], list[Tensor]]:
    """Return the converter of an op that updates each tensor and its states alike."""

    def convert(op: Op) -> list[Tensor]:
        tensors = [op.tensor(index) for index in range(2, len(op.inputs))]
        count, rest = divmod(len(tensors), 2 + num_states)
        if rest:
            raise op.refuse(f"{len(tensors)} inputs are no whole number of groups")
        outputs: list[list[Tensor]] = [[] for _ in range(1 + num_states)]
        for position in range(count):
            group = tensors[position::count]
            # The gradient stays as it is.
            kept = [group[0], *group[2:]]
            for part, (old, new) in enumerate(zip(kept, update(op, group), strict=True)):
                outputs[part].append(old.like(new))
        return [value for part in outputs for value in part]

    return convert


def _regularized(op: Op, x: Tensor, gradient: Tensor) -> torch.fx.Node:
    penalty = op.call(operator.mul, x, op.attr_float("norm_coefficient"))
    return op.call(operator.add, penalty, gradient)


def _is_later(op: Op) -> torch.fx.Node:
    """Whether this is not the first step, which has no history."""
    return op.call(torch.gt, op.tensor(1), 0)


def _momentum(op: Op, group: list[Tensor]) -> _Updated:
    x, gradient, velocity = group
    alpha = op.attr_float("alpha")
    mode = op.attr_str("mode")
    if mode not in ("standard", "nesterov"):
        raise op.refuse(f"mode '{mode}' is not one of standard, nesterov")
    slope = _regularized(op, x, gradient)
    # The first step has no velocity to be blended with.
    share = op.call(torch.where, _is_later(op), op.attr_float("beta"), 1.0)
    share = op.method("to", share, op.graph.dtype(x.dtype))
    new = op.call(operator.mul, velocity, alpha)
    new = op.call(operator.add, new, op.call(operator.mul, share, slope))
    step = new
    if mode == "nesterov":
        step = op.call(operator.add, slope, op.call(operator.mul, new, alpha))
    return [op.call(operator.sub, x, op.call(operator.mul, op.tensor(0), step)), new]


def _adagrad(op: Op, group: list[Tensor]) -> _Updated:
    x, gradient, squares = group
    slope = _regularized(op, x, gradient)
    decay = op.call(operator.mul, op.tensor(1), op.attr_float("decay_factor"))
    rate = op.call(operator.truediv, op.tensor(0), op.call(operator.add, decay, 1))
    new = op.call(operator.add, squares, op.call(operator.mul, slope, slope))
    size = op.call(operator.add, op.call(torch.sqrt, new), op.attr_float("epsilon"))
    step = op.call(operator.truediv, op.call(operator.mul, rate, slope), size)
    return [op.call(operator.sub, x, step), new]


def _adam(op: Op, group: list[Tensor]) -> _Updated:
    x, gradient, mean, square = group
    alpha = op.attr_float("alpha")
    beta = op.attr_float("beta")
    slope = _regularized(op, x, gradient)
    new_mean = _blend(op, mean, slope, alpha)
    new_square = _blend(op, square, op.call(operator.mul, slope, slope), beta)
    size = op.call(operator.add, op.call(torch.sqrt, new_square), op.attr_float("epsilon"))
    step = op.call(operator.truediv, new_mean, size)
    rate = _adam_rate(op, alpha, beta)
    new = op.call(operator.sub, x, op.call(operator.mul, rate, step))
    kept = 1 - op.attr_float("norm_coefficient_post")
    return [op.call(operator.mul, new, kept), new_mean, new_square]


def _blend(op: Op, old: Tensor, new: torch.fx.Node, share: float) -> torch.fx.Node:
    """Return share * old + (1 - share) * new."""
    kept = op.call(operator.mul, old, share)
    added = op.call(operator.mul, new, 1 - share)
    return op.call(operator.add, kept, added)


def _adam_rate(op: Op, alpha: float, beta: float) -> torch.fx.Node:
    """Return the learning rate, corrected for the short history after the first step."""
    rate = op.tensor(0)
    time = op.method("to", op.tensor(1), torch.float64)
    missing: list[Any] = [
        op.call(operator.sub, 1, op.call(torch.pow, base, time)) for base in (alpha, beta)
    ]
    factor = op.call(operator.truediv, op.call(torch.sqrt, missing[1]), missing[0])
    factor = op.call(torch.where, _is_later(op), factor, 1.0)
    return op.call(operator.mul, rate, op.method("to", factor, op.graph.dtype(rate.dtype)))


_COMMON = ("epsilon", "norm_coefficient")
for _name, _convert, _attributes in (
    ("Momentum", _optimizer(1, _momentum), ("alpha", "beta", "mode", "norm_coefficient")),
    ("Adagrad", _optimizer(1, _adagrad), (*_COMMON, "decay_factor")),
    ("Adam", _optimizer(2, _adam), (*_COMMON, "alpha", "beta", "norm_coefficient_post")),
):
    register(
        _name, _convert, versions=(1,), attributes=_attributes, domain="ai.onnx.preview.training"
    )
