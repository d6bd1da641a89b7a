"""Losses of classification, with ignored classes and weights.

Legend: N = batch, C = classes, * = any further axes.
"""

import operator

import torch

from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.registry import converter
from compiler_worker.onnx_to_fx.values import Tensor

_ATTRIBUTES = ("ignore_index", "reduction")


@converter("NegativeLogLikelihoodLoss", versions=(12, 13, 22), attributes=_ATTRIBUTES)
def negative_log_likelihood_loss(op: Op) -> Tensor:
    """Minus the log-probability [N, C, *] of each target class [N, *], weighted and reduced."""
    return _loss(op, op.tensor(0))


@converter("SoftmaxCrossEntropyLoss", versions=(12, 13), attributes=_ATTRIBUTES)
def softmax_cross_entropy_loss(op: Op) -> tuple[Tensor, Tensor]:
    """The same loss of scores; the second output is their log-probabilities."""
    scores = op.tensor(0)
    log_prob = scores.like(op.call(torch.log_softmax, scores, 1))
    return _loss(op, log_prob), log_prob


def _loss(op: Op, log_prob: Tensor) -> Tensor:
    target, reduction = op.tensor(1), op.attr_str("reduction")
    if reduction not in ("none", "mean", "sum"):
        raise op.refuse(f"reduction '{reduction}' is not one of none, mean, sum")
    index = target.node
    if target.dtype != torch.int64:
        index = op.method("to", target, torch.int64)
    ignored = _ignored(op, index)
    if ignored is not None:
        # An ignored class may lie outside of the classes.
        index = op.call(torch.where, ignored, 0, index)
    column = op.call(torch.gather, log_prob, 1, op.call(torch.unsqueeze, index, 1))
    loss = op.call(torch.neg, op.call(torch.squeeze, column, 1))
    weight = _weight(op, index, loss, ignored)
    if op.has(2):
        loss = op.call(operator.mul, loss, weight)
    if ignored is not None:
        loss = op.call(torch.where, ignored, 0.0, loss)
    if reduction == "none":
        return Tensor(loss, log_prob.dtype, target.dims)
    total = op.call(torch.sum, loss)
    if reduction == "mean":
        total = (
            op.call(torch.mean, loss)
            if weight is None
            else op.call(operator.truediv, total, op.call(torch.sum, weight))
        )
    return Tensor(total, log_prob.dtype, ())


def _ignored(op: Op, index: torch.fx.Node) -> torch.fx.Node | None:
    ignore_index = op.maybe_int("ignore_index")
    return None if ignore_index is None else op.call(torch.eq, index, ignore_index)


def _weight(
    op: Op, index: torch.fx.Node, loss: torch.fx.Node, ignored: torch.fx.Node | None
) -> torch.fx.Node | None:
    """Return each target's weight [N, *]; None where all of them count as one."""
    weight = op.call(operator.getitem, op.tensor(2), index) if op.has(2) else None
    if ignored is None:
        return weight
    each = op.call(torch.ones_like, loss) if weight is None else weight
    return op.call(torch.where, ignored, 0.0, each)
