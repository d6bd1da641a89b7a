"""Loop and Scan: a body that runs while a condition holds, or for every entry along an axis."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compiler_worker.onnx_to_fx.builder import GraphBuilder
from compiler_worker.onnx_to_fx.control_flow.rounds import Done, Round, Rounds
from compiler_worker.onnx_to_fx.control_flow.rows import stacked
from compiler_worker.onnx_to_fx.control_flow.unrolled import host_scalar, unrolled
from compiler_worker.onnx_to_fx.control_flow.while_op import repeated
from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.dtypes import CARRIED
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym, known_equal
from compiler_worker.onnx_to_fx.values import AnyValue, HostValue, Tensor, Value

_NEWER = (16, 19, 21, 23, 24, 25)


@converter("Scan", versions=(9, 11, 16, 19, 21, 23, 24, 25), carried=CARRIED)
def scan(op: Op) -> list[AnyValue]:
    """States go round; entries of the inputs along their axes go in, rows come out."""
    states, sources = _split(op, op.tensors())
    axes = _per(op, "scan_input_axes", len(sources))
    axes = [op.axis(axis, x.rank) for axis, x in zip(axes, sources, strict=True)]
    reverses = list(map(bool, _per(op, "scan_input_directions", len(sources))))
    carried, stacks = _scanned(op, states, sources, axes, reverses)
    out_axes = _per(op, "scan_output_axes", len(stacks))
    out_reverses = _per(op, "scan_output_directions", len(stacks))
    return [*carried, *map(_laid_out, [op] * len(stacks), stacks, out_axes, out_reverses)]


@converter("Scan", versions=(8,), carried=CARRIED)
def scan_of_a_batch(op: Op) -> list[AnyValue]:
    """The first form of it: the first axis is a batch, the second one is scanned.

    Raises UnsupportedGraphError for sequence lengths, and for a batch that is not constant.
    """
    if op.has(0):
        raise op.refuse("lengths of the sequences are not translated; use opset 9 or newer")
    states, sources = _split(op, [op.tensor(index) for index in range(1, len(op.inputs))])
    batch = sources[0].dims[0] if sources[0].rank else None
    if not isinstance(batch, int) or batch < 1:
        raise op.refuse("its batch must be constant; use opset 9 or newer, which has none")
    axes = [0] * len(sources)
    reverses = list(map(bool, _per(op, "directions", len(sources))))
    rows = []
    # Unrolled: in this form each entry of the batch is a scan with states of its own.
    for entry in range(batch):
        given = [[_entry(op.graph, x, 0, entry) for x in xs] for xs in (states, sources)]
        carried, stacks = _scanned(op, given[0], given[1], axes, reverses)
        rows.append([*carried, *stacks])
    return [stacked(op, column) for column in zip(*rows, strict=True)]


def _split(op: Op, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the states and what is scanned."""
    count = op.attr_int("num_scan_inputs")
    if not 1 <= count <= len(tensors):
        raise op.refuse(f"num_scan_inputs is {count}, it has {len(tensors)} inputs")
    return tensors[:-count], tensors[-count:]


def _per(op: Op, name: str, count: int) -> list[int]:
    """Return an attribute with one number for each of `count` values; zeros by default."""
    given = op.maybe_ints(name) or [0] * count
    if len(given) != count:
        raise op.refuse(f"attribute '{name}' has {len(given)} numbers, wanted {count}")
    return given


def _scanned(
    op: Op,
    states: Sequence[Tensor],
    sources: Sequence[Tensor],
    axes: Sequence[int],
    reverses: Sequence[bool],
) -> tuple[list[AnyValue], list[Value]]:
    body = op.subgraph("body")
    length = _length(op, sources, axes)

    def run(graph: GraphBuilder, index: Value, carried: Sequence[AnyValue]) -> Round:
        back = _from_the_end(graph, index, length)
        entries = [
            _entry(graph, x, axis, back if is_reverse else index)
            for x, axis, is_reverse in zip(sources, axes, reverses, strict=True)
        ]
        given = body.inline([*carried, *entries], graph)
        if len(given) < len(states):
            raise op.refuse(f"its body gives {len(given)} outputs for {len(states)} states")
        return Round(None, given[: len(states)], given[len(states) :])

    return emit_rounds(
        Rounds(op=op, body=run, num_nodes=body.num_nodes, count=length, goes_on=None, first=states)
    )


def _length(op: Op, sources: Sequence[Tensor], axes: Sequence[int]) -> HostInt:
    if any(axis >= x.rank for x, axis in zip(sources, axes, strict=True)):
        raise op.refuse("what it scans has no axis")
    lengths = [op.graph.dim(x, axis) for x, axis in zip(sources, axes, strict=True)]
    if any(known_equal(lengths[0], other) is False for other in lengths):
        raise op.refuse(f"it scans axes of different sizes: {lengths}")
    return lengths[0]


def _from_the_end(graph: GraphBuilder, index: Value, length: HostInt) -> Tensor | HostInt:
    if isinstance(index, HostValue):
        place: HostInt = length - 1 - index.data[()]
        return place
    x = graph.tensor(index)
    return x.like(graph.call(torch.sub, length - 1, x))


def _entry(graph: GraphBuilder, x: Tensor, axis: int, index: Value | HostInt) -> Tensor:
    if isinstance(index, HostValue):
        number: HostInt = index.data.item()
        return _entry(graph, x, axis, number)
    if isinstance(index, int | Sym):
        return x.resized(graph.call(torch.select, x, axis, index), axis)
    # index_select and not select: a tensor as an index would have to be read in the call.
    place = graph.method("reshape", index, (1,))
    row = graph.call(torch.index_select, x, axis, place)
    return x.resized(graph.call(torch.squeeze, row, axis), axis)


def _laid_out(op: Op, stack: Value, axis: int, is_reverse: int) -> Tensor:
    x = op.graph.tensor(stack)
    axis = op.axis(axis, x.rank)
    if is_reverse:
        x = x.like(op.call(torch.flip, x, (0,)))
    if axis == 0:
        return x
    dims = [*x.dims[1:]]
    dims.insert(axis, x.dims[0])
    return Tensor(op.call(torch.movedim, x, 0, axis), x.dtype, tuple(dims))


def emit_rounds(rounds: Rounds) -> Done:
    """Write the loop out where the number of rounds is constant and small, else keep it a loop."""
    return unrolled(rounds) or repeated(rounds)


@converter("Loop", versions=(1, 11, 13, *_NEWER), carried=CARRIED)
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
