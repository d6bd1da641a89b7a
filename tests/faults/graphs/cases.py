"""A graph from a seed: inputs, nodes of every family, outputs, and what ONNX's evaluator gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import DATATYPE_FROM_NUMPY, Array
from services.contracts.model.recipe import DimRange
from tests.faults.graphs import (
    control,
    elements,
    layouts,
    patterns,
    places,
    quantised,
    sums,
    windows,
)
from tests.faults.graphs.drawing import drawn
from tests.faults.graphs.grower import DroppedError, Grower, Value, initializer

OLDEST, NEWEST = 13, 26
_FAMILIES = (
    *(elements.FAMILY, elements.FAMILY, layouts.FAMILY, layouts.FAMILY, places.FAMILY, sums.FAMILY),
    *(windows.FAMILY, quantised.FAMILY, patterns.FAMILY),
)
_SHAPES: tuple[tuple[int | str, ...], ...] = (
    *(("N",), ("N", 4), ("N", "M"), (3, "N"), ("N", 1), ("N", 4, "M"), ("N", "M", 4), (2, 3, 4)),
    *((), (4,), ("N", 4, 4, 4), (2, 4, "N", "M"), ("N", 2, "M", 4), ("N", 6, 2)),
)
_TYPES = (np.int64, np.int32, np.bool_, np.float64, np.float16, np.uint8, np.int8, np.int16)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A valid graph.

    Attributes:
        specs: of its inputs.
        sizes: of its named dims, by setting.
        feeds: its inputs, by setting.
        values: what it computes, each with its arrays by setting; outputs come first.
        outputs: names.
    """

    model: onnx.ModelProto
    specs: tuple[TensorSpec, ...]
    sizes: Sequence[Mapping[str, int]]
    feeds: Sequence[Mapping[str, Array]]
    values: Mapping[str, Value]
    outputs: Sequence[str]

    @property
    def ranges(self) -> dict[str, DimRange]:
        """From the smallest to the largest of each dim."""
        pairs = {
            (dim, feeds[spec.name].shape[axis])
            for spec in self.specs
            for axis, dim in enumerate(spec.shape)
            for feeds in self.feeds
            if isinstance(dim, str)
        }
        ends = {n: sorted(size for dim, size in pairs if dim == n) for n, _ in sorted(pairs)}
        return {n: DimRange(min=e[0], opt=max(e[0], 1), max=max(e[-1], 1)) for n, e in ends.items()}

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        values = [self.values[name] for name in self.outputs]
        dims = [tuple(f"{v.name}_{axis}" for axis in range(v.rank)) for v in values]
        return tuple(
            TensorSpec(name=v.name, datatype=DATATYPE_FROM_NUMPY[v.dtype], shape=shape)
            for v, shape in zip(values, dims, strict=True)
        )

    @property
    def ops(self) -> str:
        return " ".join(node.op_type for node in self.model.graph.node)


def grown(seed: int, index: int) -> Case:
    """The graph of a seed and a number: the same on every machine."""
    rng = np.random.default_rng([seed, index])
    while True:
        g = Grower(rng, int(rng.integers(OLDEST, NEWEST + 1)), _settings(rng))
        _add_inputs(g)
        _grow(g, g.int(2, 8))
        if g.nodes and (case := _finished(g)):
            return case


def _settings(rng: np.random.Generator) -> list[dict[str, int]]:
    """Three sizes of each dim; of few graphs one is 0, of some 1."""
    first = [{"N": int(n), "M": int(m)} for n, m in zip((2, 3), rng.integers(3, 7, 2), strict=True)]
    least = int(rng.choice([0, 1, 4, 5]))
    return [first[0], {"N": int(rng.integers(4, 7)), "M": first[1]["M"]}, {"N": least, "M": 2}]


def _add_inputs(g: Grower) -> None:
    for _ in range(g.int(1, 3)):
        dtype: Any = np.float32 if g.chance(0.65) else g.one(_TYPES)
        g.input(g.one(_SHAPES), lambda shape, dtype=dtype: np.asarray(drawn(g.rng, shape, dtype)))


def _grow(g: Grower, count: int) -> None:
    """Take so many steps; those that do not fit cost a try."""
    for _ in range(3 * count):
        if len(g.nodes) >= count:
            break
        if g.prefix.count("_") < 1 and g.chance(0.08):
            kind = g.one(control.FAMILY)
            g.tried(lambda g, kind=kind: kind(g, _grow))
        else:
            g.tried(g.one(g.one(_FAMILIES)) if g.chance(0.99) else g.one(places.RARE))


def _finished(g: Grower) -> Case | None:
    """The model, with all that nobody reads as outputs; None where a rule of ONNX is broken."""
    read = names_read(g.nodes)
    made = {name for node in g.nodes for name in node.output}
    ends = [v for v in g.values if v.name in made and (v.name not in read or g.chance(0.1))]
    ends = [end for end in (_told(g, v) for v in (*g.ends, *ends)) if end is not None]
    if not ends:
        return None
    inputs = [helper.make_tensor_value_info(v.name, v.type, dims) for v, dims in g.inputs]
    outputs = [helper.make_tensor_value_info(v.name, v.type, [None] * v.rank) for v in ends]
    graph = helper.make_graph(
        g.nodes, "fuzzed", inputs, outputs, [initializer(v) for v in g.constants]
    )
    opsets = [helper.make_opsetid("", g.opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=13 if g.opset > 22 else 10)
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # its exceptions share no base below Exception
        return None
    specs = tuple(
        TensorSpec(name=v.name, datatype=DATATYPE_FROM_NUMPY[v.dtype], shape=dims)
        for v, dims in g.inputs
    )
    feeds = [{v.name: v.arrays[i] for v, _ in g.inputs} for i in range(len(g.sizes))]
    return Case(
        model=model,
        specs=specs,
        sizes=g.sizes,
        feeds=feeds,
        values={v.name: v for v in (*g.values, *g.ends)},
        outputs=[v.name for v in ends],
    )


def _told(g: Grower, value: Value) -> Value | None:
    """What is handed out: types that no request names go as float32."""
    if value.dtype in DATATYPE_FROM_NUMPY and value.dtype.name != "bfloat16":
        return value
    try:
        return g.add("Cast", [value], to=TensorProto.FLOAT)[0]
    except DroppedError:
        return None


def pruned(case: Case, output: str) -> Case:
    """What one output needs."""
    needed, nodes = {output}, []
    for node in reversed(case.model.graph.node):
        if not needed.isdisjoint(node.output):
            nodes.insert(0, node)
            needed |= names_read([node])
    graph = onnx.GraphProto()
    graph.CopyFrom(case.model.graph)
    del graph.node[:], graph.output[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.output.extend(o for o in case.model.graph.output if o.name == output)
    graph.initializer.extend(t for t in case.model.graph.initializer if t.name in needed)
    opsets = case.model.opset_import
    model = helper.make_model(graph, opset_imports=opsets, ir_version=case.model.ir_version)
    return replace(case, model=model, outputs=[output])


def with_settings(case: Case, kept: Sequence[int]) -> Case:
    """The case at some of its sizes."""
    values = {
        name: replace(value, arrays=tuple(value.arrays[i] for i in kept))
        for name, value in case.values.items()
    }
    sizes, feeds = ([rows[i] for i in kept] for rows in (case.sizes, case.feeds))
    return replace(case, sizes=sizes, feeds=feeds, values=values)


def names_read(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """All names that nodes read, and graphs in them."""
    found = {name for node in nodes for name in node.input}
    graphs = [a.g for node in nodes for a in node.attribute if a.HasField("g")]
    return found.union(*(names_read(list(graph.node)) for graph in graphs))
