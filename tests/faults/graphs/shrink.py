"""A wrong graph made small: fewer outputs, sizes and nodes while it is still wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import DATATYPE_FROM_NUMPY
from tests.faults.graphs.cases import Case, names_read, with_settings
from tests.faults.graphs.grower import Value

IsWrong = Callable[[Case], bool]


def shrunk(case: Case, is_wrong: IsWrong) -> Case:
    """The smallest case that steps of one change lead to."""
    while True:
        for smaller in _smaller(case):
            if is_wrong(smaller):
                case = smaller
                break
        else:
            return case


def write(case: Case, folder: Path, name: str, line: str) -> None:
    """The graph, its inputs by setting, and a line that says what is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(case.model, folder / f"{name}.onnx")
    arrays = {f"{k}.{i}": a for i, feeds in enumerate(case.feeds) for k, a in feeds.items()}
    np.savez(folder / f"{name}.npz", **arrays)
    with (folder / "wrong.txt").open("a") as file:
        file.write(f"{name}: {line}\n")


def _smaller(case: Case) -> Iterator[Case]:
    nodes = list(case.model.graph.node)
    for setting in range(len(case.sizes) if len(case.sizes) > 1 else 0):
        yield with_settings(case, [setting])
    for node in nodes[:-1] if len(case.outputs) == 1 else nodes:
        for name in node.output:
            yield from _rebuilt(case, nodes, [name])
    for node in nodes[:-1]:
        rest = [other for other in nodes if other is not node]
        for is_constant in (False, True):
            yield from _rebuilt(case, rest, case.outputs, node.output, is_constant=is_constant)


def _rebuilt(
    case: Case,
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    given: Sequence[str] = (),
    *,
    is_constant: bool = False,
) -> Iterator[Case]:
    """The case of those nodes that the outputs need; `given` are inputs or constants now."""
    if not set(outputs).isdisjoint(given):
        return
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.output):
            kept.insert(0, node)
            needed |= names_read([node])
    values = case.values
    new = [values[n] for n in given if n in needed]
    if not _are_told([*new, *(values[n] for n in outputs)]):
        return
    old = [spec for spec in case.specs if spec.name in needed]
    specs = old if is_constant else [*old, *(_spec(case, value) for value in new)]
    constants = [t for t in case.model.graph.initializer if t.name in needed]
    if is_constant:
        constants += [numpy_helper.from_array(v.arrays[0], v.name) for v in new]
    model = _model(case, kept, specs, [values[n] for n in outputs], constants)
    feeds = [{s.name: values[s.name].arrays[i] for s in specs} for i in range(len(case.sizes))]
    if model is not None:
        yield replace(case, model=model, specs=tuple(specs), feeds=feeds, outputs=list(outputs))


def _are_told(values: Sequence[Value]) -> bool:
    return all(v.dtype in DATATYPE_FROM_NUMPY and v.dtype.name != "bfloat16" for v in values)


def _spec(case: Case, value: Value) -> TensorSpec:
    """Of a value that is an input now: axes that follow a dim are named after it."""
    shape: list[int | str] = []
    for axis in range(value.rank):
        size = value.static(axis)
        names = [n for n in case.sizes[0] if value.sizes(axis) == tuple(s[n] for s in case.sizes)]
        if size is None and not names:
            names = [f"{value.name}_{axis}"]
        shape.append(names[0] if names and (size is None) else size or 0)
    return TensorSpec(
        name=value.name, datatype=DATATYPE_FROM_NUMPY[value.dtype], shape=tuple(shape)
    )


def _model(
    case: Case,
    nodes: Sequence[onnx.NodeProto],
    specs: Sequence[TensorSpec],
    outputs: Sequence[Value],
    constants: Sequence[onnx.TensorProto],
) -> onnx.ModelProto | None:
    infos = [
        helper.make_tensor_value_info(s.name, case.values[s.name].type, s.shape) for s in specs
    ]
    ends = [helper.make_tensor_value_info(v.name, v.type, [None] * v.rank) for v in outputs]
    graph = helper.make_graph(nodes, "shrunk", infos, ends, constants)
    model = helper.make_model(
        graph, opset_imports=case.model.opset_import, ir_version=case.model.ir_version
    )
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # its exceptions share no base below Exception
        return None
    return model
