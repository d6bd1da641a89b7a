"""Names for what is added to a graph, none of them the model's own."""

from itertools import chain, count

import onnx_ir as ir


class FreeNames:
    """The names of a graph's values and nodes that are not taken.

    Both are one space here: runtimes refuse two nodes of one name as they do two values.
    """

    def __init__(self, graph: ir.Graph) -> None:
        """Take note of all names of a graph without control flow."""
        values = chain(graph.inputs, graph.initializers.values(), *(n.outputs for n in graph))
        self._taken = {value.name for value in values} | {node.name for node in graph}

    def take(self, wanted: str) -> str:
        """The name, numbered when it is taken; it is taken from now on."""
        numbered = (f"{wanted}_{i}" for i in count(2))
        name = next(each for each in chain([wanted], numbered) if each not in self._taken)
        self._taken.add(name)
        return name
