"""What an input may hold, from what the graph does with it further on.

From an input the walk follows ops that keep integers and their places, or move both in a known
way, up to lookups in tables of weights. Each op returns what its operand may be; of several
uses all count. The walk answers two questions:

- strictly, which values surely mean something: proofs draw them;
- otherwise, which values may mean something: a request with any other is refused. What the graph
  decides itself (a branch of If or Where, an element that is cut away) bounds nothing then.

An index below 0 counts from the end in ONNX. Here it is legal only where the graph makes it one
that is not (`Where(ids < 0, ids + rows, ids)`, Clip, Max, Mod): an id of -1 is hardly meant as the
last row of a table, and kinds of engines differ in what they answer.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx_ir as ir

from compiler_worker.master.input_values.graph_constants import table_of
from compiler_worker.master.input_values.spans import Spans

# Of an op, the place of an operand among a node's inputs: what that operand may hold.
Rule = Callable[["InputUses", ir.Node, int], Spans]
_Uses = Iterable[tuple[ir.Node, int]]
# Names of ONNX-ML's ops are none of ONNX's.
_DOMAINS = frozenset(("", "ai.onnx.ml"))


class InputUses:
    """The walk from one input; see the module for its two questions.

    Attributes:
        is_strict: which of them is answered.
        tables: names of the tables that were found, in no order that matters.
    """

    def __init__(self, model: ir.Model, rules: Mapping[str, Rule], *, is_strict: bool) -> None:
        """Note which node each sub-graph belongs to.

        Args:
            model: its nodes and the graphs inside of them are walked.
            rules: by op type; an op without a rule requires nothing.
            is_strict: which of the module's two questions is answered.
        """
        self.is_strict = is_strict
        self._rules = rules
        self.tables: dict[str, None] = {}
        self._known: dict[ir.Value, Spans] = {}
        self._owners = {
            graph: node for node in model.graph.all_nodes() for graph in _graphs_of(node)
        }

    def spans(self, value: ir.Value) -> Spans:
        """What a value may hold, by place."""
        if value not in self._known:
            # Of a value that comes back to itself, as a loop's do, the first round counts.
            self._known[value] = Spans.of()
            graph = value.graph
            found = self._of_uses(value.uses(), graph)
            self._known[value] = found & self._of_branch_output(value, graph)
        return self._known[value]

    def looked_up(self, node: ir.Node, axis: int) -> Spans:
        """The rows of a node's table; all integers where it has none."""
        table = table_of(node.inputs[0])
        if table is None:
            return Spans.of()
        name, shape = table
        self.tables[name] = None
        return Spans.of(0, shape[axis] - 1)

    def partly(self, found: Spans) -> Spans:
        """Of elements that may not be used at all."""
        return found.uniform(is_strict=True) if self.is_strict else Spans.of()

    def moved(self, found: Spans) -> Spans:
        """Of elements whose places are not followed."""
        return found.uniform(is_strict=self.is_strict)

    def both(self, found: Spans, other: Spans) -> Spans:
        """Of two uses of one value."""
        return found & other

    def _of_uses(self, uses: _Uses, graph: Any) -> Spans:
        """All uses count, but of branches of one If only the one that is taken."""
        found = Spans.of()
        choices: dict[ir.Node, dict[Any, list[tuple[ir.Node, int]]]] = {}
        for node, index in uses:
            outer, branch = self._in_graph(node, graph)
            if outer is None or outer.op_type != "If" or self.is_strict:
                found = self.both(found, self._of_use(node, index))
            else:
                choices.setdefault(outer, {}).setdefault(branch, []).append((node, index))
        for outer, by_branch in choices.items():
            # A branch without a use requires nothing, and then nothing is required of both.
            first, *others = [self._of_uses(by_branch.get(g, ()), g) for g in _graphs_of(outer)]
            for other in others:
                first = self.moved(first) | self.moved(other)
            found &= first
        return found

    def _in_graph(self, node: ir.Node, graph: Any) -> tuple[ir.Node | None, Any]:
        """The node of a graph that holds a nested one, and the sub-graph through which it does."""
        branch: Any = node.graph
        outer = None
        inner = None
        while branch is not graph and branch in self._owners:
            outer = self._owners[branch]
            inner = branch
            branch = outer.graph
        return outer, inner

    def _of_use(self, node: ir.Node, index: int) -> Spans:
        rule = self._rules.get(node.op_type) if node.domain in _DOMAINS else None
        return rule(self, node, index) if rule else Spans.of()

    def _of_branch_output(self, value: ir.Value, graph: Any) -> Spans:
        """What is given out of a sub-graph goes on as its node's output."""
        node = self._owners.get(graph)
        if node is None or not value.is_graph_output():
            return Spans.of()
        # The first output of a loop's body is its condition.
        before = 1 if node.op_type == "Loop" else 0
        places = [i - before for i, each in enumerate(graph.outputs) if each is value]
        found = Spans.of()
        for place in places:
            if 0 <= place < len(node.outputs):
                found &= self.moved(self.spans(node.outputs[place]))
        return found if node.op_type != "If" or self.is_strict else self.partly(found)


def _graphs_of(node: ir.Node) -> list[ir.Graph]:
    """The sub-graphs of a node."""
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            graphs.append(attribute.as_graph())
        elif attribute.type is ir.AttributeType.GRAPHS:
            graphs.extend(attribute.as_graphs())
    return graphs
