"""torch's while_loop, which stays one op in an exported graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._higher_order_ops.while_loop import while_loop_op

# torch annotates the operands as a tuple of one.
_LOOP: Any = while_loop_op


def while_loop(
    goes_on: Callable[..., torch.Tensor],
    body: Callable[..., tuple[torch.Tensor, ...]],
    carried: Sequence[torch.Tensor],
    constants: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """Run `body` on what is carried while `goes_on` is true; return what is carried then.

    Unlike the function that torch documents, the op itself runs in eager mode without
    compiling anything.

    Args:
        goes_on: boolean of no axes, from what is carried and the constants.
        body: what is carried next, of the same shapes, strides and types; new tensors.
        carried: tensors before the first round.
        constants: tensors that both functions get after what is carried; they may use no
            other tensor.
    """
    result: tuple[torch.Tensor, ...] = _LOOP(goes_on, body, tuple(carried), tuple(constants))
    return result
