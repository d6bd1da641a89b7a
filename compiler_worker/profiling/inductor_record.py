"""What Inductor fused into which kernel, and the bytes of each.

Nothing but this file and `inductor_work.py` reads Inductor's inside. Two sources: the file of its
provenance tracking, a documented debug artefact, lists for each kernel, in the order of their
calls, which nodes of the optimised graph it comes from, and of which nodes of the given graph
those were made; the scheduler, seen through the hook that runs after fusion, has which buffers
each piece of work reads and writes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from compiler_worker.profiling.inductor_work import Piece, bytes_of, symbol_values

_PROVENANCE = "inductor_provenance_tracking_node_mappings.json"
_GENERATED = ("cpp_", "triton_")


@dataclass(frozen=True, kw_only=True)
class FusedKernel:
    """One kernel call of the compiled code.

    Attributes:
        name: as the profiler shows it; calls of one kernel share it.
        is_extern: a library's, not generated.
        nodes: what it computes, by names of the given graph's nodes, in no order.
        num_bytes: what its reads and writes come to; None when that is unknown.
    """

    name: str
    is_extern: bool
    nodes: frozenset[str]
    num_bytes: int | None


class Work(NamedTuple):
    """One piece of work of the scheduler: what a kernel, or a part of one, does.

    Attributes:
        origins: all optimised nodes that Inductor lists for it.
        computed: those that it computes itself.
    """

    origins: frozenset[str]
    computed: frozenset[str]
    is_extern: bool
    num_bytes: int


class InductorRecord:
    """Records one compilation: afterwards it has the kernels.

    Args:
        folder: an empty folder for Inductor's debug files.
        inputs: what the compiled code will be run with, of any shape; their sizes stand in for
            symbols.
    """

    def __init__(self, folder: Path, inputs: Sequence[torch.Tensor]) -> None:
        self._folder = folder
        self._inputs = inputs
        self._schedulers: list[Any] = []
        self._work: dict[str, Work] = {}

    def options(self) -> dict[str, Any]:
        """Settings of Inductor for the compilation; caches are off, as a hit records nothing."""
        files = ("fx_graph", "fx_graph_transformed", "ir_pre_fusion", "ir_post_fusion")

        # Not the method itself: settings are deeply copied, and a method's object with it.
        def after_fusion(nodes: list[Any]) -> list[Any]:
            return self._after_fusion(nodes)

        return {
            "_post_fusion_custom_pass": after_fusion,
            "force_disable_caches": True,
            "trace.enabled": True,
            "trace.debug_dir": str(self._folder),
            "trace.provenance_tracking_level": 1,
            "trace.output_code": False,
            **{f"trace.{file}": False for file in files},
        }

    def kernels(self) -> list[FusedKernel]:
        """Every kernel call, in order."""
        found: list[FusedKernel] = []
        # One for each graph that was compiled; folders are numbered in order.
        for path in sorted(self._folder.rglob(_PROVENANCE)):
            found += kernels_of(json.loads(path.read_text()), self._in_order())
        return found

    def _in_order(self) -> list[Work]:
        """Work in the order of the code: what runs after the hook may still move it."""
        names = (node.get_name() for each in self._schedulers for node in each.nodes)
        return [self._work[name] for name in names if name in self._work]

    def _after_fusion(self, nodes: list[Any]) -> list[Any]:
        from torch._inductor.virtualized import V

        if nodes:
            self._schedulers.append(nodes[0].scheduler)
        pieces = [Piece.of(node) for node in nodes if not _is_without_kernel(node)]
        extern = frozenset(node for piece in pieces if piece.is_extern for node in piece.origins)
        known = symbol_values(V.graph, self._inputs)
        for piece in pieces:
            self._work[piece.name] = Work(
                origins=frozenset(node.name for node in piece.origins),
                computed=frozenset(node.name for node in piece.computed(extern)),
                is_extern=piece.is_extern,
                num_bytes=bytes_of(piece.node, V.graph, known),
            )
        return nodes


def kernels_of(provenance: Mapping[str, Any], work: Sequence[Work]) -> list[FusedKernel]:
    """The kernels of one provenance file, each with the work that it does.

    Args:
        provenance: the file's content.
        work: the scheduler's pieces in order.
    """
    made_of: dict[str, list[str]] = provenance["postToPre"]
    calls = [(name, frozenset(nodes)) for name, nodes in provenance["cppCodeToPost"].items()]
    kernels = []
    seen = set[str]()
    pieces = _work_by_call(calls, work)
    computed = [frozenset(n for p in own for n in p.computed) for own in pieces]
    somewhere = _given(made_of, frozenset(node for nodes in computed for node in nodes))
    for (name, nodes), own, exact in zip(calls, pieces, computed, strict=True):
        given = _given(made_of, exact or nodes)
        if not _is_extern(name):
            # What no kernel was found to compute exactly was computed where it appears first.
            given |= _given(made_of, nodes) - somewhere - seen
        seen |= given
        kernels.append(
            FusedKernel(
                # Inductor numbers the calls behind a colon; the profiler shows the name alone.
                name=name.rpartition(":")[0],
                is_extern=_is_extern(name),
                nodes=given,
                num_bytes=sum(piece.num_bytes for piece in own) if own else None,
            )
        )
    return _each_library_call_its_own(kernels)


def _each_library_call_its_own(kernels: list[FusedKernel]) -> list[FusedKernel]:
    """Take from a library's kernel what another one is there for alone.

    A view between two products is listed for the second, though the first writes it.
    """
    alone = {node for k in kernels if k.is_extern and len(k.nodes) == 1 for node in k.nodes}
    return [
        replace(k, nodes=k.nodes - alone) if k.is_extern and k.nodes - alone else k for k in kernels
    ]


def _given(made_of: Mapping[str, Sequence[str]], nodes: frozenset[str]) -> frozenset[str]:
    return frozenset(given for node in nodes for given in made_of.get(node, ()))


def _is_extern(name: str) -> bool:
    return not name.startswith(_GENERATED)


def _work_by_call(
    calls: Sequence[tuple[str, frozenset[str]]], work: Sequence[Work]
) -> list[list[Work]]:
    """Follow calls and work side by side; on a CPU neighbouring pieces become one kernel."""
    found: list[list[Work]] = [[] for _ in calls]
    # Neither list names the other: only their common order ties a call to its work.
    at = -1
    is_open = False
    for piece in work:
        if not (is_open and not piece.is_extern and piece.origins <= calls[at][1]):
            following = at + 1
            if following == len(calls) or not _fits(piece, calls[following]):
                continue
            at = following
        found[at].append(piece)
        is_open = calls[at][0].startswith("cpp_")
    return found


def _fits(piece: Work, call: tuple[str, frozenset[str]]) -> bool:
    name, nodes = call
    return piece.is_extern == _is_extern(name) and piece.origins <= nodes


def _is_without_kernel(node: Any) -> bool:
    """Whether a piece of work only names memory: a part of a result, or what others write to."""
    from torch._inductor.ir import MultiOutput
    from torch._inductor.scheduler import NopKernelSchedulerNode

    is_unpacking = node.is_extern() and isinstance(node.node, MultiOutput)
    return is_unpacking or isinstance(node, NopKernelSchedulerNode)
