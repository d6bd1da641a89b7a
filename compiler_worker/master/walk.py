"""Walks over everything an ONNX model holds, sub-graphs and local functions included."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import onnx

from services.contracts.errors import UnsupportedGraphError


class NodeAt(NamedTuple):
    """A node and the opset versions by domain that hold where it stands."""

    node: onnx.NodeProto
    opsets: dict[str, int]


def opsets_of(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Version by domain; the default domain is always ''."""
    return {domain_of(entry.domain): entry.version for entry in imports}


def domain_of(domain: str) -> str:
    """The one spelling of a domain: '' for ai.onnx."""
    return "" if domain == "ai.onnx" else domain


def nodes(model: onnx.ModelProto) -> Iterator[NodeAt]:
    """Every node, those of sub-graphs and local functions included."""
    for node in nested(model.graph.node):
        yield NodeAt(node, opsets_of(model.opset_import))
    for function in model.functions:
        opsets = opsets_of(function.opset_import)
        for node in nested(function.node):
            yield NodeAt(node, opsets)


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph and every sub-graph."""
    yield model.graph
    for node, _ in nodes(model):
        for attribute in node.attribute:
            yield from graphs_of(attribute)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor: initialisers and attributes of all graphs and functions."""
    for graph in graphs(model):
        yield from graph.initializer
    for node, _ in nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def nested(sequence: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Every node of a sequence, those of the graphs inside of nodes included."""
    for node in sequence:
        yield node
        for attribute in node.attribute:
            for graph in graphs_of(attribute):
                yield from nested(graph.node)


def graphs_of(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that an attribute holds."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def refusal(node: onnx.NodeProto, opset: int, reason: str) -> UnsupportedGraphError:
    """Return the error that refuses a node; the caller raises it.

    Args:
        node: is named, or by its first output where exporters gave no name.
        opset: version of its domain that the model imports.
        reason: in words.
    """
    domain = domain_of(node.domain)
    return UnsupportedGraphError(
        reason,
        op_type=f"{domain}::{node.op_type}" if domain else node.op_type,
        node=node.name or next(iter(node.output), ""),
        opset=opset,
    )
