"""The names of one graph of the model and what stands behind them while it is imported."""

from __future__ import annotations

from collections.abc import Mapping

from compiler_worker.onnx_to_fx.builder import GraphBuilder
from compiler_worker.onnx_to_fx.values import AnyValue

# Per axis its static size, or its name ("" for none).
Axes = tuple[int | str, ...]


class NameScope:
    """Values by name; a graph inside of another one also reads the names around it.

    Attributes:
        graph: where the nodes of this graph are emitted.
        declared: axes that the model itself declares for a value.
    """

    def __init__(
        self,
        graph: GraphBuilder,
        *,
        outer: NameScope | None = None,
        declared: Mapping[str, Axes] | None = None,
    ) -> None:
        """Begin without values.

        Args:
            graph: where the nodes of this graph are emitted.
            outer: scope of the graph around this one; None for the model's own.
            declared: axes that the model declares, by value.
        """
        self.graph = graph
        self.declared = declared or {}
        self._outer = outer
        self._values: dict[str, AnyValue] = {}

    def find(self, name: str) -> AnyValue | None:
        """Return the value of a name, here or around; None where it is not defined."""
        # Inner names first: a body may name a value as the graph around it does.
        found = self._values.get(name)
        if found is not None or self._outer is None:
            return found
        return self._outer.find(name)

    def define(self, name: str, value: AnyValue) -> None:
        """Give a name its value."""
        self._values[name] = value

    def defines(self, name: str) -> bool:
        """Whether this graph itself defined the name."""
        return name in self._values
