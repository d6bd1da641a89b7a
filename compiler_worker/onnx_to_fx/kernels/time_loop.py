"""Steps along the first axis: a Python loop, or torch's while_loop where the length is open.

Legend: T = time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from compiler_worker.onnx_to_fx.kernels.while_loop import while_loop

States: TypeAlias = list[torch.Tensor]
# (states, the sequences' entries at this time, constants) -> (new states, output)
Step: TypeAlias = Callable[
    [States, Sequence[torch.Tensor], Sequence[torch.Tensor]], tuple[States, torch.Tensor]
]

# Up to this many steps of a static length are written out: short graphs fuse better so.
MAX_UNROLLED = 64


def run_steps(
    step: Step,
    states: States,
    sequences: Sequence[torch.Tensor],
    constants: Sequence[torch.Tensor],
    output_shape: Sequence[int],
    *,
    is_unrolled: bool,
) -> tuple[States, torch.Tensor]:
    """Run `step` over sequences [T, ...]; return the last states and the outputs [T, ...].

    Args:
        step: makes new tensors; it may not return an input or a view of one.
        states: tensors before the first step; every step keeps their shapes and types.
        sequences: tensors of which step t is given entry t.
        constants: tensors that every step is given whole.
        output_shape: shape of one step's output, which has the first state's type.
        is_unrolled: whether a traced graph has the steps one by one; the length then
            is the same in every call.
    """
    length = sequences[0].shape[0]
    if not is_unrolled and torch.compiler.is_compiling():
        return _while(step, states, sequences, constants, output_shape)
    rows = []
    for time in range(length):
        states, row = step(states, [sequence[time] for sequence in sequences], constants)
        rows.append(row)
    return states, torch.stack(rows) if rows else states[0].new_zeros([0, *output_shape])


def _while(
    step: Step,
    states: States,
    sequences: Sequence[torch.Tensor],
    constants: Sequence[torch.Tensor],
    output_shape: Sequence[int],
) -> tuple[States, torch.Tensor]:
    length = sequences[0].shape[0]
    num_states = len(states)
    num_sequences = len(sequences)

    def is_before_end(time: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return time < length

    def body(time: torch.Tensor, *carried: torch.Tensor) -> tuple[torch.Tensor, ...]:
        now = list(carried[:num_states])
        outputs = carried[num_states]
        rest = carried[num_states + 1 :]
        index = time.reshape(1)
        entries = [whole.index_select(0, index).squeeze(0) for whole in rest[:num_sequences]]
        then, row = step(now, entries, rest[num_sequences:])
        # while_loop wants what goes round to keep its strides.
        then = [state.contiguous() for state in then]
        return time + 1, *then, outputs.index_copy(0, index, row.unsqueeze(0))

    start = torch.zeros((), dtype=torch.int64, device=states[0].device)
    first = [state.clone(memory_format=torch.contiguous_format) for state in states]
    outputs = states[0].new_zeros([length, *output_shape])
    carried = (start, *first, outputs)
    _, *last = while_loop(is_before_end, body, carried, (*sequences, *constants))
    return last[:-1], last[-1]
