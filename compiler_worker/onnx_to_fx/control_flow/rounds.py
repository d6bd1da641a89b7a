"""What a Loop and a Scan have in common: a body that runs round after round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compiler_worker.onnx_to_fx.builder import GraphBuilder
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt
from compiler_worker.onnx_to_fx.values import AnyValue, Tensor, Value


@dataclass(frozen=True, slots=True)
class Round:
    """What one round gives.

    Attributes:
        goes_on: whether there is a next one; None for always.
        carried: what the next one starts with.
        rows: its entry of each stacked output.
    """

    goes_on: AnyValue | None
    carried: Sequence[AnyValue]
    rows: Sequence[AnyValue]


# (where to emit, number of the round, what is carried) -> what it gives
Body: TypeAlias = "Callable[[GraphBuilder, Value, Sequence[AnyValue]], Round]"
# What is carried after the last round, and the stacked outputs.
Done: TypeAlias = "tuple[list[AnyValue], list[Value]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """A loop before it is emitted.

    Attributes:
        op: the node that is converted.
        body: emits one round.
        num_nodes: nodes of the body.
        count: rounds at most; None for no bound.
        goes_on: whether there is a first one; None for always.
        first: what the first one starts with.
    """

    op: Op
    body: Body
    num_nodes: int
    count: HostInt | Tensor | None
    goes_on: AnyValue | None
    first: Sequence[AnyValue]

    def known(self, goes_on: AnyValue | None) -> bool | None:
        """Return a condition's value where it is the same in every call, else None."""
        value = True if goes_on is None else self.op.known(goes_on)
        return None if value is None else bool(value)
