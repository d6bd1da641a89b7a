"""Which keys a query may attend to: causal order, windows, padding and given masks.

Legend: B = batch, H = heads, Q = queries, K = keys (past and new).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch.nn import functional

from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym
from compiler_worker.onnx_to_fx.values import Tensor, unknown


@dataclass(frozen=True, slots=True)
class MaskSizes:
    """Sizes that a mask depends on.

    Attributes:
        queries: number of queries of this call.
        keys: number of keys, past ones included.
        past: number of keys before the first query, where that is one number for all.
        lengths: int64 [B], valid keys per entry of an external cache; else None.
    """

    queries: HostInt
    keys: HostInt
    past: HostInt
    lengths: Tensor | None


def attention_mask(op: Op, span: MaskSizes) -> Tensor | None:
    """Return one mask (bool, or float to add) for all restrictions, None for no restriction."""
    given = _given_mask(op, span)
    allowed = _allowed(op, span)
    if allowed is None:
        return given
    if given is None:
        return allowed
    if given.dtype == torch.bool:
        return Tensor(op.call(operator.and_, given, allowed), torch.bool, unknown(4))
    return given.like(op.call(torch.where, allowed, given, float("-inf")))


def _given_mask(op: Op, span: MaskSizes) -> Tensor | None:
    mask = op.maybe(3)
    if mask is None or op.version < 24:
        return mask
    have = op.graph.dim(mask, mask.rank - 1)
    want = span.keys
    # ONNX fills a shorter mask with "no", one of size 1 too.
    return mask if have == want else _padded(op, mask, want - have)


def _padded(op: Op, mask: Tensor, missing: HostInt) -> Tensor:
    if not isinstance(missing, Sym) and missing < 0:
        raise op.refuse(f"the mask is {-missing} longer than the keys")
    fill = False if mask.dtype == torch.bool else float("-inf")
    node = op.call(functional.pad, mask, [0, missing], "constant", fill)
    return mask.resized(node, mask.rank - 1, None)


def _allowed(op: Op, span: MaskSizes) -> Tensor | None:
    """Return bool [Q, K] or [B, 1, Q, K], from causal order, window and cache lengths."""
    causal = bool(op.attr_int("is_causal"))
    left = op.attr_int("left_window_size") if op.version >= 25 else -1
    right = op.attr_int("right_window_size") if op.version >= 25 else -1
    if causal:
        right = 0
    tests: list[torch.fx.Node] = []
    key_K = op.call(torch.arange, span.keys, device=op.graph.device())
    if left >= 0 or right >= 0:
        position = _positions(op, span)
        if right >= 0:
            tests.append(op.call(operator.le, key_K, op.call(operator.add, position, right)))
        if left >= 0:
            tests.append(op.call(operator.ge, key_K, op.call(operator.sub, position, left)))
    if span.lengths is not None:
        lengths_B111 = op.call(torch.reshape, span.lengths, [-1, 1, 1, 1])
        tests.append(op.call(operator.lt, key_K, lengths_B111))
    if not tests:
        return None
    node = tests[0]
    for test in tests[1:]:
        node = op.call(operator.and_, node, test)
    return Tensor(node, torch.bool, unknown(2 if span.lengths is None else 4))


def _positions(op: Op, span: MaskSizes) -> torch.fx.Node:
    """Return each query's place among the keys: [Q, 1], or [B, 1, Q, 1] for external caches."""
    steps = op.call(torch.arange, span.queries, device=op.graph.device())
    steps_Q1 = op.call(torch.unsqueeze, steps, 1)
    if span.lengths is None:
        return op.call(operator.add, steps_Q1, span.past)
    lengths_B111 = op.call(torch.reshape, span.lengths, [-1, 1, 1, 1])
    offset = op.call(operator.sub, lengths_B111, span.queries)
    return op.call(operator.add, steps_Q1, offset)
