"""How many kernels a call of an engine for CPUs runs, as its library says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import helper

from compiler_worker.builders.select import builder_for
from compiler_worker.profiling.timing import num_kernels
from compiler_worker.references.models import FxModel
from services.engines.guarded import GuardedEngine
from services.engines.loader import engine_class
from tests.conformance.cases import ENGINE_CASES, EngineCase
from tests.conformance.tiny_model import draw_inputs, master_record, save_master
from tests.conformance.workshop import Built, Published

INPUTS = draw_inputs(2, 8)
CASES = {case.name: case for case in ENGINE_CASES}


def deeper(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a product and a softmax at its end."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.node[-1].output[0] = "mean"
    made.graph.node.append(helper.make_node("MatMul", ["mean", "wq"], ["mixed"]))
    made.graph.node.append(helper.make_node("Softmax", ["mixed"], ["pooled"]))
    onnx.checker.check_model(made, full_check=True)
    return made


@contextmanager
def loaded(published: Published, directory: Path, master_path: Path) -> Iterator[GuardedEngine]:
    """The engine of other files; its record stays as it is."""
    spec = replace(published.spec, directory=directory, master_path=master_path)
    engine = engine_class(spec.manifest.key.kind).load(spec)
    assert isinstance(engine, GuardedEngine)
    yield engine
    engine.close()


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_what_a_deeper_graph_runs_besides_is_counted(
    built_of: Callable[[EngineCase], Built], model: onnx.ModelProto, tmp_path: Path, name: str
) -> None:
    built = built_of(CASES[name])
    assert isinstance(built, Published)
    counts = []
    for number, graph in enumerate((model, deeper(model))):
        folder = tmp_path / str(number)
        folder.mkdir()
        with loaded(built, folder, save_master(graph, folder)) as engine:
            engine.run(INPUTS)
            counts.append(engine.num_kernels(INPUTS))
            # It is served as before.
            assert set(engine.run(INPUTS)) == {"hidden", "pooled"}
            assert engine.num_kernels(INPUTS) == counts[-1]
    num_nodes = len(model.graph.node)
    assert num_nodes / 2 < counts[0] <= num_nodes
    # A library may compute both in one.
    assert counts[0] < counts[1] <= counts[0] + 2


def test_ops_of_eager_are_counted_without_views(model: onnx.ModelProto, tmp_path: Path) -> None:
    counts = []
    for graph in (model, deeper(model)):
        eager = FxModel.open(save_master(graph, tmp_path), master_record(), device="cpu")
        counts.append(num_kernels(lambda each=eager: each.run(INPUTS), "cpu"))  # type: ignore[misc]
    num_views = sum(node.op_type in ("Unsqueeze", "Transpose") for node in model.graph.node)
    assert counts[0] == len(model.graph.node) - num_views
    assert counts[1] == counts[0] + 2


@pytest.mark.slow  # compiles for a minute
def test_what_a_deeper_package_calls_besides_is_counted(
    built_of: Callable[[EngineCase], Built], model: onnx.ModelProto, tmp_path: Path
) -> None:
    built = built_of(CASES["inductor"])
    assert isinstance(built, Published)
    plan = replace(built.plan, master_path=save_master(deeper(model), tmp_path))
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    builder_for(plan.key.kind).build(plan, workspace, print)
    with loaded(built, workspace, tmp_path) as engine:
        more = engine.num_kernels(INPUTS)
    with loaded(built, built.spec.directory, tmp_path) as engine:
        assert engine.num_kernels(INPUTS) < more
