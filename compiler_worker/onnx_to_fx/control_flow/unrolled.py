"""Writes a loop out round by round, where the number of rounds is the same in every call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from compiler_worker.onnx_to_fx.control_flow.nested import NestedBuilder
from compiler_worker.onnx_to_fx.control_flow.rounds import Done, Rounds
from compiler_worker.onnx_to_fx.control_flow.rows import empty_stack, stacked
from compiler_worker.onnx_to_fx.sym import HostInt, Sym
from compiler_worker.onnx_to_fx.values import AnyValue, HostValue, Tensor, Value

# Written out, rounds fuse with each other and with what is around them, but each is compiled.
MAX_UNROLLED_NODES = 2048


def unrolled(rounds: Rounds) -> Done | None:
    """Emit round after round; None where their number is open or too large."""
    count = rounds.count
    goes_on = rounds.known(rounds.goes_on)
    if isinstance(count, Sym | Tensor):
        return None
    carried = list(rounds.first)
    rows = list[Sequence[AnyValue]]()
    while goes_on and (count is None or len(rows) < count):
        # By the whole count where it is known: not a thousand rounds first, and a loop after all.
        if max(len(rows) + 1, count or 0) * max(rounds.num_nodes, 1) > MAX_UNROLLED_NODES:
            return None
        done = rounds.body(rounds.op.graph, host_scalar(len(rows)), carried)
        carried = list(done.carried)
        goes_on = rounds.known(done.goes_on)
        rows.append(done.rows)
    if goes_on is None:
        return None
    if not rows:
        return carried, _no_rows(rounds)
    return carried, [stacked(rounds.op, column) for column in zip(*rows, strict=True)]


def host_scalar(item: HostInt, dtype: torch.dtype = torch.int64) -> HostValue:
    """Return a number of the host, of no axes."""
    data = np.empty((), dtype=object)
    data[()] = item
    return HostValue(data, dtype)


def _no_rows(rounds: Rounds) -> list[Value]:
    """Return stacked outputs without a row; the body says what one would be."""
    op = rounds.op
    inner = NestedBuilder(op.graph)
    done = rounds.body(inner, host_scalar(0), rounds.first)
    return [empty_stack(op, inner.tensor(op.as_tensor(row)), 0, inner) for row in done.rows]
