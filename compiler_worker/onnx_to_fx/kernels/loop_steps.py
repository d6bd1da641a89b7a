"""Steps of a loop whose number of rounds is dynamic.

Legend: R = rounds at most; `...` = the axes of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def runs(
    index: torch.Tensor, count: torch.Tensor | int | None, condition: torch.Tensor | None
) -> torch.Tensor:
    """Return whether the round of this number runs, bool [].

    Args:
        index: number of the round, int64 [].
        count: rounds at most; None for no bound.
        condition: of the round before, bool, one element; None for always.
    """
    bound = count.reshape(()) if isinstance(count, torch.Tensor) else count
    go = torch.ge(index, 0) if bound is None else torch.lt(index, bound)
    return go if condition is None else torch.logical_and(go, condition.reshape(()))


def own_copy(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of x's shape with plain strides: what leaves a graph shares no memory."""
    return x.clone(memory_format=torch.contiguous_format)


def of_sizes(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return `x`, of these sizes.

    Raises:
        ValueError: it has others.
    """
    if any(found != wanted for found, wanted in zip(x.shape, sizes, strict=True)):
        raise ValueError(
            f"what goes round must keep its sizes, found {list(x.shape)}, wanted {[*sizes]}"
        )
    return x


def put(stack: torch.Tensor, index: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Return the stack with one row replaced.

    Args:
        stack: one row per round, [R, ...].
        index: of the row, int64, one element.
        row: of the stack's type, [...].

    Returns:
        [R, ...], of the stack's type.
    """
    return stack.index_copy(0, index.reshape(1), row.unsqueeze(0))


def filled(stack: torch.Tensor, num_rounds: torch.Tensor) -> torch.Tensor:
    """Return the rows of the rounds that ran: the first `num_rounds`, int64 [], of [R, ...]."""
    return stack[torch.arange(stack.shape[0], device=stack.device) < num_rounds]
