"""Loop, and Scan since version 9."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compiler_worker.onnx_to_fx.builder import GraphBuilder
from compiler_worker.onnx_to_fx.control_flow.rounds import Done, Round, Rounds
from compiler_worker.onnx_to_fx.control_flow.unrolled import host_scalar, unrolled
from compiler_worker.onnx_to_fx.control_flow.while_op import repeated
from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.dtypes import CARRIED
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt
from compiler_worker.onnx_to_fx.values import AnyValue, HostValue, Tensor, Value

_NEWER = (16, 19, 21, 23, 24, 25)


def emit_rounds(rounds: Rounds) -> Done:
    """Write the loop out where the number of rounds is constant and small, else keep it a loop."""
    return unrolled(rounds) or repeated(rounds)


@converter("Loop", versions=(1, 11, 13, *_NEWER), attributes=("body",), carried=CARRIED)
def loop(op: Op) -> list[AnyValue]:
    """Runs its body while a condition holds, up to a number of times.

    Raises UnsupportedGraphError for a body with fewer outputs than carried values.
    """
    body = op.subgraph("body")
    first = [op.any_value(i) for i in range(2, len(op.inputs))]
    num_rows = len(body.proto.output) - 1 - len(first)
    if num_rows < 0:
        raise op.refuse(f"its body gives {len(body.proto.output)} outputs for {len(first)} carried")

    def run(graph: GraphBuilder, index: Value, carried: Sequence[AnyValue]) -> Round:
        # The body runs only where the condition holds.
        goes_on, *rest = body.inline([index, host_scalar(True, torch.bool), *carried], graph)
        return Round(goes_on, rest[: len(first)], rest[len(first) :])

    carried, stacks = emit_rounds(
        Rounds(
            op=op,
            body=run,
            num_nodes=body.num_nodes,
            count=_trip_count(op),
            goes_on=op.any_value(1) if op.has(1) else None,
            first=first,
        )
    )
    return [*carried, *stacks]


def _trip_count(op: Op) -> HostInt | Tensor | None:
    if not op.has(0):
        return None
    known = op.known(op.any_value(0))
    if known is not None:
        return int(known)
    value = op.value(0)
    if isinstance(value, HostValue) and value.data.size == 1:
        size: HostInt = value.data.reshape(-1)[0]
        return size
    return op.tensor(0)
