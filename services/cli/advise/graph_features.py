"""What a graph is like: its class, and reasons not to serve it with Smelt, in plain sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from compiler_worker.builders.expected_speed import GraphClass
from compiler_worker.master import walk
from services.cli.advise.op_flops import CONVOLUTIONS, RECURRENCES

if TYPE_CHECKING:
    import onnx

    from services.contracts.model.manifest import MasterRecord

_CACHE: Final = re.compile(r"past|present|cache", re.IGNORECASE)
_QUANTISED: Final = re.compile(r"qlinear|quantizelinear|integer$|nbits$", re.IGNORECASE)
_VOCABULARY = 4096
# A core does these in a few tenths of a millisecond, and calls of an engine take a tenth.
_SMALL_FLOPS = 2e7
_SERVER = (
    "an LLM server (vLLM, TensorRT-LLM, llama.cpp) is the tool; "
    "docs/how-to/clients/front-a-server.md has one behind the gateway"
)


def graph_class(proto: onnx.ModelProto, flops_by_op: Mapping[str, float]) -> GraphClass:
    """What most FLOPs are of; attention has products of what was computed, without weights.

    Args:
        proto: the graph.
        flops_by_op: of a run.
    """
    if 0 < sum(flops_by_op.values()) < _SMALL_FLOPS:
        return GraphClass.SMALL
    weights = {each.name for each in proto.graph.initializer}
    products = [node for node in proto.graph.node if node.op_type in ("MatMul", "Attention")]
    has_attention = any(weights.isdisjoint(node.input[:2]) for node in products)
    shares = Counter[GraphClass]()
    for op, flops in flops_by_op.items():
        other = GraphClass.ATTENTION if has_attention else GraphClass.DENSE
        other = GraphClass.RECURRENT if op in RECURRENCES else other
        shares[GraphClass.CONVOLUTIONS if op in CONVOLUTIONS else other] += int(flops)
    return shares.most_common(1)[0][0] if shares else GraphClass.OTHER


def graph_remarks(proto: onnx.ModelProto, master: MasterRecord) -> Iterator[str]:
    """What the graph says against compiling or serving it here; the wrong tool is called so."""
    ops = Counter(node.op_type for node, _ in walk.nodes(proto))
    caches = [spec.name for spec in master.inputs if _CACHE.search(spec.name)]
    if caches and any(_CACHE.search(spec.name) for spec in master.outputs):
        yield (
            f"Smelt is the wrong tool: a decoder with {len(caches)} caches ({caches[0]}, ...) is "
            f"run in a loop that hands them on, which replicas do not do; {_SERVER}"
        )
    elif num := _num_tokens(master):
        yield (
            f"it scores {num} tokens at each position: if clients generate text with it, token by "
            f"token, Smelt is the wrong tool; {_SERVER}"
        )
    if control := [f"{ops[op]} {op}" for op in ("If", "Loop", "Scan") if op in ops]:
        yield (
            f"control flow ({', '.join(control)}): what runs depends on the data and is not fused "
            "across it; expect less"
        )
    if quantised := sum(num for op, num in ops.items() if _QUANTISED.search(op)):
        yield (
            f"quantised already ({quantised} ops): the graph's own eight bits are computed with, "
            "and int8 of the recipe adds nothing"
        )


def _num_tokens(master: MasterRecord) -> int:
    """How many an output scores at each position of ids; 0 where nothing looks so."""
    if not any(s.datatype.startswith("INT") and len(s.shape) == 2 for s in master.inputs):
        return 0
    sizes = (spec.shape[2] for spec in master.outputs if len(spec.shape) == 3)
    return max((s for s in sizes if isinstance(s, int) and s >= _VOCABULARY), default=0)
