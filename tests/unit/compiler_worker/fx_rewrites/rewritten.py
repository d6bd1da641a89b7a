"""Applies rewrites to a module on the CPU and compares with the module itself, in float64."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from compiler_worker.fx_rewrites.rewrite import rewrite_graph

Inputs = tuple[torch.Tensor, ...]
MAX_REL_L2 = 1e-12


class Case:
    """One module, exported with some dynamic dimensions, before and after rewrites.

    Attributes:
        counts: how often each rewrite applied.
        graph: the rewritten module.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Inputs,
        names: Sequence[str],
        dynamic: tuple[dict[int, Any], ...] | None = None,
    ) -> None:
        self._module = module.eval()
        program = torch.export.export(module, inputs, dynamic_shapes=dynamic, strict=False)
        self.before = program.module(check_guards=False)
        self.graph: fx.GraphModule = program.module(check_guards=False)
        editor = rewrite_graph(self.graph, names)
        self.counts, self.joined = editor.counts, editor.joined

    def num_calls(self, target: Any) -> int:
        """Calls of an op in the rewritten graph."""
        return _num_calls(self.graph, target)

    def num_calls_before(self, target: Any) -> int:
        """Calls of an op in the graph as it was exported."""
        return _num_calls(self.before, target)

    def check(self, *inputs: torch.Tensor, max_rel_l2: float = MAX_REL_L2) -> None:
        """Assert that every output is the module's own, here and after another export."""
        with torch.no_grad():
            wanted = _outputs(self._module(*inputs))
            again = torch.export.export(self.graph, inputs, strict=False).module()
            for graph in (self.graph, again):
                for found, want in zip(_outputs(graph(*inputs)), wanted, strict=True):
                    assert (found.dtype, found.shape) == (want.dtype, want.shape)
                    assert _rel_l2(found, want) <= max_rel_l2


def double(*shape: int) -> torch.Tensor:
    """Seeded by its shape, float64."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _num_calls(graph: fx.GraphModule, target: Any) -> int:
    return sum(node.target is target for node in graph.graph.nodes)


def _outputs(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _rel_l2(found: torch.Tensor, wanted: torch.Tensor) -> float:
    distance = (found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30)
    return float(distance)
