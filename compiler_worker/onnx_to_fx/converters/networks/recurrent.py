"""LSTM, GRU and RNN.

Legend: T = time, B = batch, I = input size, H = hidden size, N = directions.
"""

from __future__ import annotations

import operator
from typing import Any

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.kernels.cells import ACTIVATIONS
from compiler_worker.onnx_to_fx.kernels.recurrence import LAYERS, recurrent
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import Dims, Tensor

# Whether a direction runs from the end.
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@converter("LSTM", versions=(7, 14, 22))
def lstm(op: Op) -> list[Tensor]:
    """Long short-term memory."""
    return _recurrent(op, ("Sigmoid", "Tanh", "Tanh"), couples=bool(op.attr_int("input_forget")))


@converter("GRU", versions=(7, 14, 22))
def gru(op: Op) -> list[Tensor]:
    """Gated recurrent unit."""
    resets_late = bool(op.attr_int("linear_before_reset"))
    return _recurrent(op, ("Sigmoid", "Tanh"), resets_late=resets_late)


@converter("RNN", versions=(7, 14, 22))
def rnn(op: Op) -> list[Tensor]:
    """Simple recurrent network."""
    return _recurrent(op, ("Tanh",))


def _recurrent(
    op: Op, activations: tuple[str, ...], *, resets_late: bool = False, couples: bool = False
) -> list[Tensor]:
    reverses = _DIRECTIONS[op.choice("direction", _DIRECTIONS)]
    kind = op.proto.op_type
    is_batch_first = op.version >= 14 and bool(op.attr_int("layout"))
    x = op.tensor(0)
    time = x.dims[1 if is_batch_first else 0]
    rest = (op.maybe_float("clip"), resets_late, couples)
    forms = [(names, *rest) for names in _activations(op, activations, len(reverses))]
    num_states = LAYERS[kind].num_states
    node = op.call(
        recurrent,
        kind,
        x,
        (op.tensor(1), op.tensor(2), op.maybe(3), op.maybe(7)),
        [op.maybe(5 + index) for index in range(num_states)],
        op.maybe(4),
        forms,
        reverses,
        is_batch_first,
        time if isinstance(time, int) else None,
    )
    return _outputs(op, node, num_states, len(reverses), is_batch_first)


def _activations(op: Op, usual: tuple[str, ...], directions: int) -> list[tuple[str, ...]]:
    """Return the names of each direction's activations.

    Those translated have no alpha and no beta, so `activation_alpha` and `_beta` mean nothing.
    """
    given = op.maybe_strings("activations")
    if given is None:
        return [usual] * directions
    unknown = sorted(set(given) - ACTIVATIONS.keys())
    if unknown:
        raise op.refuse(f"activation '{unknown[0]}' is not translated")
    # The default of RNN names two, also where one direction uses only the first.
    if len(given) < len(usual) * directions:
        raise op.refuse(f"{len(given)} activations for {directions} directions")
    return [
        tuple(given[first : first + len(usual)])
        for first in range(0, len(usual) * directions, len(usual))
    ]


def _outputs(
    op: Op, node: Any, num_states: int, directions: int, is_batch_first: bool
) -> list[Tensor]:
    x = op.tensor(0)
    hidden = op.value(2).dims[-1]
    outer, inner = x.dims[:2]
    y_dims: Dims = (outer, directions, inner, hidden)
    dims: Dims = (directions, inner, hidden)
    if is_batch_first:
        y_dims = (outer, inner, directions, hidden)
        dims = (outer, directions, hidden)
    first, *states = (op.call(operator.getitem, node, k) for k in range(1 + num_states))
    return [
        Tensor(first, x.dtype, y_dims),
        *(Tensor(state, x.dtype, dims) for state in states),
    ]
