"""A loop as one op: torch's while_loop, where the number of rounds is dynamic.

It carries tensors that keep their type and sizes. Stacked outputs are carried too, with a place
for every round, and each round fills its own.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace

import torch

from compiler_worker.onnx_to_fx.builder import GraphBuilder
from compiler_worker.onnx_to_fx.control_flow.nested import NestedBuilder
from compiler_worker.onnx_to_fx.control_flow.rounds import Done, Rounds
from compiler_worker.onnx_to_fx.control_flow.rows import empty_stack
from compiler_worker.onnx_to_fx.control_flow.unrolled import host_scalar
from compiler_worker.onnx_to_fx.dtypes import element_type_name
from compiler_worker.onnx_to_fx.kernels.loop_steps import filled, of_sizes, own_copy, put, runs
from compiler_worker.onnx_to_fx.kernels.while_loop import while_loop
from compiler_worker.onnx_to_fx.sym import HostInt, Sym, sym_max
from compiler_worker.onnx_to_fx.values import AnyValue, Dims, OptionalValue, SequenceValue, Tensor

# Every round has its place in memory before the first one runs.
MAX_STACKED_ROUNDS = 1 << 24


def repeated(rounds: Rounds) -> Done:
    """Emit the loop as one op.

    Raises:
        UnsupportedGraphError: what it carries is no tensor or does not keep its type and sizes,
            or nothing bounds the length of its stacked outputs.
    """
    return _Repeated(rounds).emit()


class _Repeated:
    """One loop while it is emitted; what goes round starts with the round's number and its go."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._op = rounds.op
        self._outer = rounds.op.graph
        self._inner = NestedBuilder(self._outer)
        self._start = [self._started(value) for value in rounds.first]
        self._stacks: list[Tensor] = []
        self._ahead: Sequence[AnyValue] | None = None
        self._is_counted = rounds.known(rounds.goes_on) is True

    def emit(self) -> Done:
        """Emit the body, the check, and the call of both."""
        after = self._body()
        copies = (self._op.call(own_copy, x) for x in self._start)
        first = [*self._first_round(), *copies, *self._stacks]
        used = self._inner.lifted()
        body = self._outer.add_module("round", self._inner.module(after))
        check = self._outer.add_module("check", self._check(len(first), used))
        node = self._op.call(while_loop, check, body, first, used)
        return self._results(node)

    def _started(self, value: AnyValue) -> Tensor:
        """Return a tensor before the loop, all of its sizes known there."""
        if isinstance(value, SequenceValue | OptionalValue):
            kind = "a sequence" if isinstance(value, SequenceValue) else "an optional"
            raise self._op.refuse(
                f"it carries {kind} and only the call knows how often it runs; a constant trip "
                "count resolves it at import"
            )
        x = self._outer.tensor(value)
        return Tensor(x.node, x.dtype, tuple(self._outer.dim(x, axis) for axis in range(x.rank)))

    def _first_round(self) -> list[torch.fx.Node]:
        graph = self._outer
        rounds = self._rounds
        zero = graph.call(torch.zeros, (), dtype=torch.int64, device=graph.device())
        goes_on = None if self._is_counted else self._flag(graph, rounds.goes_on)
        return [zero, graph.call(runs, zero, rounds.count, goes_on)]

    def _flag(self, graph: GraphBuilder, value: AnyValue | None) -> Tensor | None:
        return None if value is None else graph.tensor(self._op.as_tensor(value))

    def _body(self) -> list[torch.fx.Node]:
        inner = self._inner
        rounds = self._rounds
        index = inner.add_input("index", torch.int64, ())
        inner.add_input("goes_on", torch.bool, ())
        own = [inner.add_input("carried", x.dtype, x.dims) for x in self._start]
        done = rounds.body(inner, index, own)
        after = [self._kept(*pair) for pair in zip(self._start, done.carried, strict=True)]
        filled_stacks = [self._filled(index, *each) for each in enumerate(done.rows)]
        goes_on = None
        if rounds.known(done.goes_on) is not True:
            self._is_counted = False
            goes_on = self._flag(inner, done.goes_on)
        then = inner.call(operator.add, index, 1)
        flag = inner.call(runs, then, rounds.count, goes_on)
        return [then, flag, *(inner.call(own_copy, x) for x in after), *filled_stacks]

    def _kept(self, before: Tensor, value: AnyValue) -> Tensor:
        """Return what the next round starts with, of the type and sizes of the first."""
        after = self._inner.tensor(self._op.as_tensor(value))
        is_alike = (before.dtype, before.rank) == (after.dtype, after.rank)
        if is_alike and before.dims == after.dims:
            return after
        if is_alike and all(map(_may_be_equal, before.dims, after.dims)):
            # As of a broadcast: known, or an error, in each round.
            return before.like(self._inner.call(of_sizes, after, before.dims))
        raise self._op.refuse(
            f"what goes round must keep its type and sizes, found {_shown(before)} before and "
            f"{_shown(after)} after a round, and only the call knows how often it runs"
        )

    def _filled(self, index: Tensor, position: int, row: AnyValue) -> torch.fx.Node:
        op = self._op
        inner = self._inner
        tensor = inner.tensor(op.as_tensor(row))
        if None in inner.outer_dims(tensor):
            tensor = replace(tensor, dims=self._first_row(position).dims)
        stack = empty_stack(op, tensor, self._most_rounds(), inner)
        self._stacks.append(stack)
        own = inner.add_input("rows", stack.dtype, stack.dims)
        return inner.call(put, own, index, tensor)

    def _first_row(self, position: int) -> Tensor:
        """Return a row of the first round, computed once more before the loop for its sizes."""
        if self._ahead is None:
            rounds = self._rounds
            self._ahead = rounds.body(self._outer, host_scalar(0), rounds.first).rows
        return self._started(self._ahead[position])

    def _most_rounds(self) -> HostInt:
        count = self._rounds.count
        if isinstance(count, Sym) or (isinstance(count, int) and count <= MAX_STACKED_ROUNDS):
            return count if isinstance(count, Sym) and count.is_size else sym_max(count, 0)
        raise self._op.refuse(
            "nothing known before the call bounds the length of its stacked outputs; give it a "
            "trip count that is constant or computed from shapes"
        )

    def _check(self, num_carried: int, used: Sequence[torch.fx.Node]) -> torch.fx.GraphModule:
        check = NestedBuilder(self._outer)
        inputs = [check.add_input("carried", torch.bool, ()) for _ in range(num_carried)]
        # torch passes both graphs the same arguments, whether they use them or not.
        check.take(used)
        return check.module(check.call(torch.clone, inputs[1]))

    def _results(self, node: torch.fx.Node) -> Done:
        results = [self._op.call(operator.getitem, node, k) for k in range(2 + len(self._start))]
        carried: list[AnyValue] = [
            x.like(result) for x, result in zip(self._start, results[2:], strict=True)
        ]
        return carried, [
            self._stacked(
                stack, self._op.call(operator.getitem, node, len(results) + k), results[0]
            )
            for k, stack in enumerate(self._stacks)
        ]

    def _stacked(self, stack: Tensor, node: torch.fx.Node, num_rounds: torch.fx.Node) -> Tensor:
        if self._is_counted:
            return stack.like(node)
        rows = self._op.call(filled, node, num_rounds)
        return Tensor(rows, stack.dtype, (None, *stack.dims[1:]))


def _may_be_equal(before: HostInt | None, after: HostInt | None) -> bool:
    # Two symbols are two computations: one that makes what goes round grow is refused here.
    return after is None or before == after or isinstance(before, Sym) != isinstance(after, Sym)


def _shown(tensor: Tensor) -> str:
    return f"{element_type_name(tensor.dtype)}[{', '.join(_sizes(tensor.dims))}]"


def _sizes(dims: Dims) -> list[str]:
    return [str(size) if isinstance(size, int) else "?" for size in dims]
