"""Sets ops against kernels: every op of the graph has an outcome, every kernel its chain."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Graph, Node
from torch.fx.node import map_arg

from compiler_worker.profiling.inductor_record import FusedKernel
from compiler_worker.profiling.profile_report import (
    EagerOp,
    GraphOp,
    KernelCall,
    OpOutcome,
    Peaks,
    short_name,
)
from compiler_worker.profiling.traffic import Chain, Dispatched, chain_of


@dataclass(frozen=True, kw_only=True)
class EagerRun:
    """What was seen of a graph that eager PyTorch ran.

    Attributes:
        times_s: seconds by name of a node.
    """

    graph: Graph
    dispatched: Sequence[Dispatched]
    times_s: Mapping[str, float]

    def by_node(self) -> list[tuple[Node, list[Dispatched]]]:
        """Every node that dispatched an op, in the graph's order, with its ops."""
        found: dict[str, list[Dispatched]] = defaultdict(list)
        for op in self.dispatched:
            found[op.node].append(op)
        return [(node, found[node.name]) for node in self.graph.nodes if node.name in found]

    def eager_op(self, node: Node, dispatched: Sequence[Dispatched]) -> EagerOp:
        """The account of one node."""
        return EagerOp(
            name=node.name,
            target=str(node.target),
            dispatched=tuple(op.op for op in dispatched),
            num_bytes=sum(op.num_bytes for op in dispatched),
            num_flops=sum(op.num_flops for op in dispatched),
            time_s=self.times_s.get(node.name),
        )


@dataclass(frozen=True, kw_only=True)
class CompiledRun:
    """What was seen of the graph once it was compiled.

    Attributes:
        given: the graph that was compiled, as eager runs it; the kernels name its nodes.
        times_s: seconds by kernel call.
    """

    given: EagerRun
    kernels: Sequence[FusedKernel]
    times_s: Sequence[float | None]
    peaks: Peaks


def eager_ops(run: EagerRun) -> list[EagerOp]:
    """Every op of a graph."""
    return [run.eager_op(node, dispatched) for node, dispatched in run.by_node()]


def graph_ops(found: CompiledRun) -> list[GraphOp]:
    """Every op of the graph that was compiled, with what became of it."""
    run = found.given
    outcomes = _Outcomes(found.given.graph, found.kernels)
    for node, dispatched in run.by_node():
        if any(op.num_flops for op in dispatched):
            outcomes.take_along(node)
    ops = []
    for node, dispatched in run.by_node():
        outcome, shared_with = outcomes.of(node, is_free=all(op.is_free for op in dispatched))
        kernels = tuple(outcomes.kernels_of(node)) if outcome is OpOutcome.KERNEL else ()
        plain = run.eager_op(node, dispatched).model_dump()
        ops.append(GraphOp(**plain, outcome=outcome, shared_with=shared_with, kernels=kernels))
    return ops


def kernel_calls(found: CompiledRun, ops: Sequence[GraphOp]) -> list[KernelCall]:
    """Every kernel with its chain of ops, their traffic one by one, and its own."""
    moving = {
        node: [op for op in dispatched if not op.is_free]
        for node, dispatched in found.given.by_node()
        if not all(op.is_free for op in dispatched)
    }
    by_kernel: list[list[GraphOp]] = [[] for _ in found.kernels]
    for op in ops:
        for index in op.kernels:
            by_kernel[index].append(op)
    chains = [
        None if kernel.is_extern else _chain(moving, {op.name for op in own})
        for kernel, own in zip(found.kernels, by_kernel, strict=True)
    ]
    return [_kernel_call(i, found, by_kernel[i], chains[i]) for i in range(len(by_kernel))]


def _kernel_call(
    index: int, found: CompiledRun, ops: Sequence[GraphOp], chain: Chain | None
) -> KernelCall:
    kernel = found.kernels[index]
    time_s = found.times_s[index]
    # An op that several kernels compute counts in the first.
    own = [op for op in ops if op.kernels[0] == index]
    eager_bytes = sum(op.num_bytes for op in own)
    num_flops = sum(op.num_flops for op in own)
    share = None
    if kernel.num_bytes is not None and time_s is not None:
        share = found.peaks.share(num_flops, kernel.num_bytes, time_s)
    return KernelCall(
        name=kernel.name,
        is_extern=kernel.is_extern,
        ops=tuple(op.name for op in ops),
        chain=tuple(short_name(op.target) for op in ops),
        eager_bytes=eager_bytes,
        eager_time_s=sum(op.time_s or 0.0 for op in own),
        num_bytes=kernel.num_bytes,
        num_flops=num_flops,
        num_chain_ops=chain.num_ops if chain else None,
        num_side_inputs=chain.num_sides if chain else None,
        predicted_gain=chain.gain if chain else None,
        measured_gain=eager_bytes / kernel.num_bytes if own and kernel.num_bytes else None,
        time_s=time_s,
        roofline_share=share,
    )


def _chain(moving: Mapping[Node, Sequence[Dispatched]], names: set[str]) -> Chain | None:
    """The chain that a kernel's nodes are; None when they are two chains, one op, or none."""
    nodes = [node for node in moving if node.name in names]
    known: set[Node] = set()
    for node in nodes:
        if known and not _follows(node, known, moving):
            return None
        known.add(node)
    ops = [op for node in nodes for op in moving[node]]
    return chain_of(ops) if len(ops) > 1 else None


def _follows(node: Node, known: set[Node], moving: Mapping[Node, Sequence[Dispatched]]) -> bool:
    """Whether a node takes what one of the known nodes made, itself or a view of it."""
    stack = list(node.all_input_nodes)
    while stack:
        each = stack.pop()
        if each in known:
            return True
        if each not in moving:
            stack += each.all_input_nodes
    return False


class _Outcomes:
    """Finds for each node of a graph what became of it."""

    def __init__(self, graph: Graph, kernels: Sequence[FusedKernel]) -> None:
        self._kernels: dict[str, list[int]] = defaultdict(list)
        # Library calls first: a product with its bias is the product's, for bytes and FLOPs.
        for index in sorted(range(len(kernels)), key=lambda i: not kernels[i].is_extern):
            for name in kernels[index].nodes:
                self._kernels[name].append(index)
        self._depends = _depend_on_input(graph)
        self._equals = _earlier_equals(graph)
        self._extern = {index for index, kernel in enumerate(kernels) if kernel.is_extern}

    def take_along(self, product: Node) -> None:
        """Give a product that no kernel names to the library's call that computes what follows.

        A library computes a product with an activation or a sum in one call, of which Inductor
        names the last op alone; and a product is never simplified away.
        """
        path = [product]
        while len(path[-1].users) == 1 and not self.kernels_of(path[-1]):
            path.append(next(iter(path[-1].users)))
        *unnamed, last = path
        library_s = self._extern.intersection(self.kernels_of(last)[:1])
        if library_s:
            self._kernels.update((node.name, list(library_s)) for node in unnamed)

    def kernels_of(self, node: Node) -> list[int]:
        """Indices of the kernels that compute a node."""
        return self._kernels.get(node.name, [])

    def of(self, node: Node, *, is_free: bool) -> tuple[OpOutcome, str]:
        """A node's outcome, and the name of the equal node that was computed in its place."""
        if is_free:
            return OpOutcome.FREE, ""
        if self.kernels_of(node):
            return OpOutcome.KERNEL, ""
        if not self._depends[node]:
            return OpOutcome.FOLDED, ""
        if node in self._equals:
            return OpOutcome.SHARED, self._equals[node].name
        return (OpOutcome.SIMPLIFIED if node.users else OpOutcome.UNUSED), ""


def _depend_on_input(graph: Graph) -> dict[Node, bool]:
    """Whether a node's value depends on an input; others are computed when compiled."""
    depends: dict[Node, bool] = {}
    for node in graph.nodes:
        is_input = node.op == "placeholder"
        depends[node] = is_input or any(depends[each] for each in node.all_input_nodes)
    return depends


def _earlier_equals(graph: Graph) -> dict[Node, Node]:
    """Nodes that compute what an earlier one does, from the same operands."""
    first: dict[str, Node] = {}
    equals: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        operands = map_arg((node.args, node.kwargs), lambda each: equals.get(each, each))
        # By text, as operands may be lists and slices, which have no hash.
        key = f"{node.target} {operands}"
        if first.setdefault(key, node) is not node:
            equals[node] = first[key]
    return equals
