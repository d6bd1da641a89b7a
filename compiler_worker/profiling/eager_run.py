"""Eager PyTorch, node by node: the graph's ops counted, or named for the profiler.

Inputs are those of the graph in order, of any shape.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from compiler_worker.profiling.traffic import DispatchCounter, Dispatched

# Marks a node's range in a trace.
NODE_PREFIX = "op: "


class _NodeByNode(Interpreter):
    """Runs a graph, each node within a context of its own."""

    def __init__(
        self, module: GraphModule, around: Callable[[Node], AbstractContextManager[Any]]
    ) -> None:
        super().__init__(module)
        self._around = around

    def run_node(self, n: Node) -> Any:
        """Run one node; inputs, weights and the result are no ops."""
        # The graphs of an importer call no modules.
        if n.op not in ("call_function", "call_method"):
            return super().run_node(n)
        with self._around(n):
            return super().run_node(n)


def dispatched_ops(module: GraphModule, inputs: Sequence[torch.Tensor]) -> list[Dispatched]:
    """Run the graph once and note every ATen op that it dispatches."""
    counter = DispatchCounter()

    @contextmanager
    def noted(node: Node) -> Iterator[None]:
        counter.node = node.name
        yield

    with torch.no_grad(), counter:
        _NodeByNode(module, noted).run(*inputs)
    return counter.ops


def named_run(module: GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[[], Any]:
    """A call that runs the graph with each node's range under its name, for the profiler."""
    runner = _NodeByNode(
        module, lambda node: torch.profiler.record_function(NODE_PREFIX + node.name)
    )

    def call() -> Any:
        with torch.no_grad():
            return runner.run(*inputs)

    return call


def plain_run(module: GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[[], Any]:
    """A call that runs the graph as usual."""

    def call() -> Any:
        with torch.no_grad():
            return module(*inputs)

    return call
