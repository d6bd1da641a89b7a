"""One step of each recurrent cell, in every form that ONNX gives it.

Legend: B = batch, H = hidden size. `x` is the input's share of all gates, with its bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch.nn import functional

Activation: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
ACTIVATIONS: dict[str, Activation] = {
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
    "Tanh": torch.tanh,
}


@dataclass(frozen=True, slots=True)
class CellForm:
    """What the attributes of a node make of a cell.

    Attributes:
        activations: names in ONNX's order, for one direction.
        clip: bound of what goes into an activation; None for no bound.
        resets_late: whether the reset gate of a GRU comes after the linear layer.
        couples: whether the forget gate of an LSTM is one minus the input gate.
    """

    activations: tuple[str, ...]
    clip: float | None
    resets_late: bool
    couples: bool

    def act(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Apply one of the activations to each element; any shape, kept."""
        if self.clip is not None:
            x = x.clamp(-self.clip, self.clip)
        return ACTIVATIONS[self.activations[index]](x)


@dataclass(frozen=True, slots=True)
class CellWeights:
    """Weights of one direction: recurrence [H, gates * H] and bias, peepholes [3 * H]."""

    recurrence: torch.Tensor
    bias: torch.Tensor
    peepholes: torch.Tensor


def rnn_step(
    form: CellForm, states: list[torch.Tensor], x: torch.Tensor, weights: CellWeights
) -> list[torch.Tensor]:
    """Return the new hidden state [B, H].

    Args:
        form: activation and clip.
        states: the hidden state [B, H].
        x: [B, H].
        weights: of one direction.
    """
    return [form.act(0, x + states[0] @ weights.recurrence + weights.bias)]


def gru_step(
    form: CellForm, states: list[torch.Tensor], x: torch.Tensor, weights: CellWeights
) -> list[torch.Tensor]:
    """Return the new hidden state [B, H]; gates are update, reset, hidden.

    Args:
        form: activations, clip and place of the reset gate.
        states: the hidden state [B, H].
        x: [B, 3 * H].
        weights: of one direction.
    """
    (h,) = states
    size = states[0].shape[-1]
    recurrence = weights.recurrence
    bias = weights.bias
    gates = x[:, : 2 * size] + h @ recurrence[:, : 2 * size] + bias[: 2 * size]
    update, reset = form.act(0, gates).chunk(2, -1)
    if form.resets_late:
        recalled = reset * (h @ recurrence[:, 2 * size :] + bias[2 * size :])
    else:
        recalled = (reset * h) @ recurrence[:, 2 * size :] + bias[2 * size :]
    candidate = form.act(1, x[:, 2 * size :] + recalled)
    return [(1 - update) * candidate + update * h]


def lstm_step(
    form: CellForm, states: list[torch.Tensor], x: torch.Tensor, weights: CellWeights
) -> list[torch.Tensor]:
    """Return the new hidden and cell states [B, H]; gates are input, output, forget, cell.

    Args:
        form: activations, clip, and whether the gates are coupled.
        states: hidden and cell state, [B, H] each.
        x: [B, 4 * H].
        weights: of one direction.
    """
    h, c = states
    gates = x + h @ weights.recurrence + weights.bias
    for_input, for_output, for_forget, for_cell = gates.chunk(4, -1)
    peep_input, peep_output, peep_forget = weights.peepholes.chunk(3)
    taken = form.act(0, for_input + peep_input * c)
    kept = 1 - taken if form.couples else form.act(0, for_forget + peep_forget * c)
    cell = kept * c + taken * form.act(1, for_cell)
    # The output gate uses the new cell state, the two others the old one.
    shown = form.act(0, for_output + peep_output * cell)
    return [shown * form.act(2, cell), cell]
