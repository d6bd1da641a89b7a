"""Recurrent layers: torch's own where it has one, steps of a cell elsewhere.

Legend: T = time, B = batch, I = input size, H = hidden size, N = directions, G = gates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from compiler_worker.onnx_to_fx.kernels.cells import (
    CellForm,
    CellWeights,
    gru_step,
    lstm_step,
    rnn_step,
)
from compiler_worker.onnx_to_fx.kernels.time_loop import MAX_UNROLLED, run_steps

# W [N, G * H, I], R [N, G * H, H], both biases [N, 2 * G * H], peepholes [N, 3 * H].
Weights: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]"


@dataclass(frozen=True, slots=True)
class _Layer:
    """How torch's layer differs from ONNX's op.

    Attributes:
        function: torch's layer, by the activations it applies.
        gates: position in ONNX of each of torch's gates.
        num_states: hidden state, and a cell state where there is one.
        step: one step of the cell.
    """

    function: dict[tuple[str, ...], Callable[..., Any]]
    gates: tuple[int, ...]
    num_states: int
    step: Callable[[CellForm, list[torch.Tensor], torch.Tensor, CellWeights], list[torch.Tensor]]


LAYERS = {
    # ONNX orders LSTM gates input, output, forget, cell; torch input, forget, cell, output.
    "LSTM": _Layer({("Sigmoid", "Tanh", "Tanh"): torch.lstm}, (0, 2, 3, 1), 2, lstm_step),
    # ONNX orders GRU gates update, reset, hidden; torch reset, update, new.
    "GRU": _Layer({("Sigmoid", "Tanh"): torch.gru}, (1, 0, 2), 1, gru_step),
    "RNN": _Layer({("Tanh",): torch.rnn_tanh, ("Relu",): torch.rnn_relu}, (0,), 1, rnn_step),
}


def recurrent(
    kind: str,
    x: torch.Tensor,
    weights: Weights,
    states: Sequence[torch.Tensor | None],
    lengths: torch.Tensor | None,
    forms: Sequence[tuple[Any, ...]],
    reverses: Sequence[bool],
    is_batch_first: bool,
    num_steps: int | None,
) -> tuple[torch.Tensor, ...]:
    """Run a layer over x [T, B, I], or [B, T, I] with the batch first.

    Args:
        kind: LSTM, GRU or RNN.
        x: inputs.
        weights: see `Weights`.
        states: initial states [N, B, H] ([B, N, H]); zeros for None.
        lengths: steps of each entry of the batch [B]; None for all.
        forms: fields of a `CellForm` per direction.
        reverses: per direction, whether it runs from the end.
        is_batch_first: whether the batch is the first axis of inputs, outputs and states.
        num_steps: T where it is the same in every call, else None.

    Returns:
        Outputs [T, N, B, H] ([B, T, N, H]) and the last states.
    """
    x_TBI = x.transpose(0, 1) if is_batch_first else x
    size = [len(reverses), x_TBI.shape[1], weights[1].shape[-1]]
    first = [_state(state, x, size, is_batch_first) for state in states]
    layer = LAYERS[kind]
    cells = [CellForm(*form) for form in forms]
    function = _torch_layer(layer, kind, cells, weights[3], lengths)
    # An export of torch's layer fixes the number of steps.
    if function is not None and (num_steps is not None or not torch.compiler.is_compiling()):
        y_TBNH, last = _fused(function, layer, x_TBI, weights, first, reverses)
    else:
        is_unrolled = num_steps is not None and num_steps <= MAX_UNROLLED
        run = _Run(layer, x_TBI, weights, first, lengths, is_unrolled)
        y_TBNH, last = run.directions(cells, reverses)
    if is_batch_first:
        return y_TBNH.transpose(0, 1), *(state.transpose(0, 1) for state in last)
    return y_TBNH.transpose(1, 2), *last


def _state(
    state: torch.Tensor | None, x: torch.Tensor, size: list[int], is_batch_first: bool
) -> torch.Tensor:
    if state is None:
        return x.new_zeros(size)
    return state.transpose(0, 1) if is_batch_first else state


def _torch_layer(
    layer: _Layer,
    kind: str,
    cells: Sequence[CellForm],
    peepholes: torch.Tensor | None,
    lengths: torch.Tensor | None,
) -> Callable[..., Any] | None:
    """Return torch's layer where it computes the same, else None."""
    cell = cells[0]
    is_plain = cell.clip is None and not cell.couples and peepholes is None and lengths is None
    if not is_plain or any(other != cell for other in cells):
        return None
    # torch's GRU resets after the linear layer, as cuDNN does; ONNX by default before it.
    if kind == "GRU" and not cell.resets_late:
        return None
    return layer.function.get(cell.activations)


def _fused(
    function: Callable[..., Any],
    layer: _Layer,
    x_TBI: torch.Tensor,
    weights: Weights,
    states: list[torch.Tensor],
    reverses: Sequence[bool],
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    w, r, bias, _ = weights
    flat = []
    for direction in range(len(reverses)):
        # In torch's order: input weights, recurrence, then the bias of each.
        parts = [w[direction], r[direction]]
        if bias is not None:
            parts += bias[direction].chunk(2)
        flat += [_reordered(part, layer.gates) for part in parts]
    # torch has no layer that runs from the end alone: time is flipped before and after.
    is_backward = list(reverses) == [True]
    source = x_TBI.flip(0) if is_backward else x_TBI
    # cuDNN takes no states that are transposed.
    whole = [state.contiguous() for state in states]
    initial = whole if layer.num_states > 1 else whole[0]
    both = len(reverses) == 2
    # After the weights: biases, layers, dropout, training, both directions, batch first.
    y, *last = function(source, initial, flat, bias is not None, 1, 0.0, False, both, False)
    y = y.flip(0) if is_backward else y
    return torch.unflatten(y, 2, [len(reverses), -1]), last


def _reordered(weight: torch.Tensor, gates: tuple[int, ...]) -> torch.Tensor:
    parts = weight.chunk(len(gates))
    return torch.cat([parts[gate] for gate in gates]) if len(gates) > 1 else weight


@dataclass(frozen=True, slots=True)
class _Run:
    """A layer in steps; see `recurrent` for the attributes, with the time first."""

    layer: _Layer
    x: torch.Tensor
    weights: Weights
    states: list[torch.Tensor]
    lengths: torch.Tensor | None
    is_unrolled: bool

    def directions(
        self, cells: Sequence[CellForm], reverses: Sequence[bool]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return outputs [T, B, N, H] and the last states [N, B, H]."""
        lasts = []
        outputs = []
        for direction, is_backward in enumerate(reverses):
            sequences = self._sequences(direction)
            if is_backward:
                sequences = [sequence.flip(0) for sequence in sequences]
            last, y_TBH = self._steps(cells[direction], sequences, direction)
            lasts.append(last)
            outputs.append(y_TBH.flip(0) if is_backward else y_TBH)
        return torch.stack(outputs, 2), [torch.stack(part) for part in zip(*lasts, strict=True)]

    def _sequences(self, direction: int) -> list[torch.Tensor]:
        """Return the input's share of the gates at all times, and who has not ended yet."""
        w, _, bias, _ = self.weights
        projected = self.x @ w[direction].t()
        if bias is not None:
            projected = projected + bias[direction].chunk(2)[0]
        if self.lengths is None:
            return [projected]
        steps = torch.arange(projected.shape[0], device=projected.device)
        return [projected, (steps.unsqueeze(1) < self.lengths).unsqueeze(2)]

    def _steps(
        self, form: CellForm, sequences: list[torch.Tensor], direction: int
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        step = self.layer.step

        def masked_step(
            states: list[torch.Tensor],
            now: Sequence[torch.Tensor],
            constants: Sequence[torch.Tensor],
        ) -> tuple[list[torch.Tensor], torch.Tensor]:
            new = step(form, states, now[0], CellWeights(*constants))
            if len(now) == 1:
                return new, new[0]
            # Entries of the batch that have ended keep their states and give zeros.
            kept = [torch.where(now[1], *pair) for pair in zip(new, states, strict=True)]
            return kept, torch.where(now[1], new[0], 0.0)

        first = [state[direction] for state in self.states]
        shape = list(first[0].shape)
        return run_steps(
            masked_step,
            first,
            sequences,
            self._constants(direction),
            shape,
            is_unrolled=self.is_unrolled,
        )

    def _constants(self, direction: int) -> tuple[torch.Tensor, ...]:
        """Return recurrence, its bias and peepholes, as `CellWeights` has them."""
        _, r, bias, peepholes = self.weights
        hidden = r.shape[-1]
        return (
            r[direction].t(),
            r.new_zeros([r.shape[1]]) if bias is None else bias[direction].chunk(2)[1],
            r.new_zeros([3 * hidden]) if peepholes is None else peepholes[direction],
        )
