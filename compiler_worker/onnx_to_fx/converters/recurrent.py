"""LSTM, GRU and RNN, in the forms torch has kernels for.

Legend: T = time, B = batch, I = input size, H = hidden size, N = directions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.registry import converter
from compiler_worker.onnx_to_fx.values import Tensor

_ATTRIBUTES = (
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "layout",
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """How torch's kernel differs from ONNX's op.

    Attributes:
        function: torch's kernel.
        gates: position in ONNX of each of torch's gates.
        activations: what the kernel applies, per direction.
        has_cell: whether there is a cell state beside the hidden one.
    """

    function: Callable[..., Any]
    gates: tuple[int, ...]
    activations: tuple[str, ...]
    has_cell: bool = False


# ONNX orders LSTM gates input, output, forget, cell; torch input, forget, cell, output.
_LSTM = _Kind(torch.lstm, (0, 2, 3, 1), ("Sigmoid", "Tanh", "Tanh"), has_cell=True)
# ONNX orders GRU gates update, reset, hidden; torch reset, update, new.
_GRU = _Kind(torch.gru, (1, 0, 2), ("Sigmoid", "Tanh"))
_RNN = _Kind(torch.rnn_tanh, (0,), ("Tanh",))


@converter("LSTM", versions=(7, 14, 22), attributes=(*_ATTRIBUTES, "input_forget"))
def lstm(op: Op) -> list[Tensor]:
    """Long short-term memory without peepholes."""
    if op.has(7):
        raise op.refuse("peepholes are not translated")
    if op.attr_int("input_forget"):
        raise op.refuse("input_forget is not translated")
    return _recurrent(op, _LSTM)


@converter("GRU", versions=(7, 14, 22), attributes=(*_ATTRIBUTES, "linear_before_reset"))
def gru(op: Op) -> list[Tensor]:
    """Gated recurrent unit that applies the reset gate after the linear layer."""
    if not op.attr_int("linear_before_reset"):
        raise op.refuse("linear_before_reset 0 is not translated")
    return _recurrent(op, _GRU)


@converter("RNN", versions=(7, 14, 22), attributes=_ATTRIBUTES)
def rnn(op: Op) -> list[Tensor]:
    """Simple recurrent network with tanh."""
    return _recurrent(op, _RNN)


def _recurrent(op: Op, kind: _Kind) -> list[Tensor]:
    directions = _check(op, kind)
    batch_first = op.version >= 14 and bool(op.attr_int("layout"))
    x = op.tensor(0)
    x_TBI = op.call(torch.transpose, x, 0, 1) if batch_first else x.node
    reverse = op.attr_str("direction") == "reverse"
    if reverse:
        x_TBI = op.call(torch.flip, x_TBI, [0])
    states = [_state(op, 5 + k, batch_first, directions) for k in range(1 + kind.has_cell)]
    weights, has_bias = _weights(op, kind, directions)
    out = op.call(
        kind.function,
        x_TBI,
        states if kind.has_cell else states[0],
        weights,
        has_bias,
        1,
        0.0,
        False,
        directions == 2,
        False,
    )
    parts = [op.call(operator.getitem, out, k) for k in range(2 + kind.has_cell)]
    if reverse:
        parts[0] = op.call(torch.flip, parts[0], [0])
    return _outputs(op, parts, directions, batch_first)


def _check(op: Op, kind: _Kind) -> int:
    """Refuse what the kernel does not do; return the number of directions."""
    direction = op.attr_str("direction")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise op.refuse(f"direction '{direction}' is not translated")
    directions = 2 if direction == "bidirectional" else 1
    if op.has(4):
        raise op.refuse("sequence_lens is not translated")
    if op.maybe_float("clip") is not None:
        raise op.refuse("clip is not translated")
    given = op.maybe_strings("activations")
    wanted = kind.activations * directions
    # The default of RNN names two, also where one direction uses only the first.
    if given is not None and tuple(given[: len(wanted)]) != wanted:
        raise op.refuse(f"activations {given} are not translated")
    return directions


def _state(op: Op, index: int, batch_first: bool, directions: int) -> torch.fx.Node:
    """Return an initial state [N, B, H]; zeros where the graph gives none."""
    state = op.maybe(index)
    if state is None:
        batch = op.dims(0)[0 if batch_first else 1]
        hidden = op.dims(2)[-1]
        return op.method("new_zeros", op.tensor(0), [directions, batch, hidden])
    return op.call(torch.transpose, state, 0, 1) if batch_first else state.node


def _weights(op: Op, kind: _Kind, directions: int) -> tuple[list[torch.fx.Node], bool]:
    """Return torch's flat list: per direction W, R, then both biases where there are any."""
    flat: list[torch.fx.Node] = []
    for direction in range(directions):
        for index in (1, 2):
            whole = op.call(torch.select, op.tensor(index), 0, direction)
            flat.append(_reordered(op, whole, kind.gates))
        if op.has(3):
            both = op.call(torch.select, op.tensor(3), 0, direction)
            halves = op.call(torch.chunk, both, 2)
            for half in range(2):
                bias = op.call(operator.getitem, halves, half)
                flat.append(_reordered(op, bias, kind.gates))
    return flat, op.has(3)


def _reordered(op: Op, weight: torch.fx.Node, gates: tuple[int, ...]) -> torch.fx.Node:
    if len(gates) == 1:
        return weight
    chunks = op.call(torch.chunk, weight, len(gates), dim=0)
    return op.call(torch.cat, [op.call(operator.getitem, chunks, gate) for gate in gates])


def _outputs(
    op: Op, parts: list[torch.fx.Node], directions: int, batch_first: bool
) -> list[Tensor]:
    """Return Y [T, N, B, H] and the last states [N, B, H]; batch comes first where asked."""
    x = op.tensor(0)
    time, batch = (x.dims[1], x.dims[0]) if batch_first else (x.dims[0], x.dims[1])
    hidden = op.value(2).dims[-1]
    y_TBNH = op.call(torch.unflatten, parts[0], 2, [directions, -1])
    if batch_first:
        y = Tensor(
            op.call(torch.transpose, y_TBNH, 0, 1), x.dtype, (batch, time, directions, hidden)
        )
    else:
        y = Tensor(
            op.call(torch.transpose, y_TBNH, 1, 2), x.dtype, (time, directions, batch, hidden)
        )
    results = [y]
    for state in parts[1:]:
        if batch_first:
            turned = op.call(torch.transpose, state, 0, 1)
            results.append(Tensor(turned, x.dtype, (batch, directions, hidden)))
        else:
            results.append(Tensor(state, x.dtype, (directions, batch, hidden)))
    return results
