"""If, Loop, Scan and sequences of models with a dynamic batch: one graph for every shape."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch._inductor import aoti_compile_and_package, aoti_load_package
from torch.export import Dim

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

Array = np.ndarray
Feeds = Callable[[np.random.Generator, int, int], Sequence[Array]]


def rows(rng: np.random.Generator, n: int, t: int) -> Sequence[Array]:
    """A batch of n rows of 4 with sums of either sign."""
    return [rng.standard_normal((n, 4), dtype=np.float32) * (-1) ** t]


def steps(rng: np.random.Generator, n: int, t: int) -> Sequence[Array]:
    """Return t steps of a batch of n rows of 4."""
    return [rng.standard_normal((t, n, 4), dtype=np.float32)]


@dataclass(frozen=True)
class Graph:
    """A graph in ONNX's text form, inputs for sizes (n, t), and the op that torch is to run."""

    text: str
    feeds: Feeds = rows
    op: str = ""
    constants: dict[str, Array] = field(default_factory=dict)


ROWS = "g (float[N, 4] x)"
STEPS = "g (float[T, N, 4] x)"
W = {"w": np.random.default_rng(5).standard_normal((4, 4), dtype=np.float32) / 4}
GRAPHS = {
    "a choice by data": Graph(
        f"""{ROWS} => (float y)
        {{ s = ReduceSum <keepdims = 0> (x)  c = Greater (s, zero)
          y = If <then_branch = t () => (float a) {{ h = MatMul (x, w) a = Relu (h) }},
            else_branch = e () => (float b) {{ b = Identity (x) }}> (c) }}""",
        op="cond",
        constants={"zero": np.float32(0), **W},
    ),
    "a choice by the batch": Graph(
        f"""{ROWS} => (float y)
        {{ s = Shape <end = 1> (x)  c = Greater (s, two)
          y = If <then_branch = t () => (float a) {{ a = Neg (x) }},
            else_branch = e () => (float b) {{ b = Exp (x) }}> (c) }}""",
        op="cond",
        constants={"two": np.array([2])},
    ),
    "a choice of sizes": Graph(
        f"""{ROWS} => (float y)
        {{ s = ReduceSum <keepdims = 0> (x)  c = Greater (s, zero)
          a = If <then_branch = t () => (float a) {{ a = ReduceMax <keepdims = 1> (x, axis) }},
            else_branch = e () => (float b) {{ b = Concat <axis = 0> (x, x) }}> (c)
          y = Exp (a) }}""",
        op="cond",
        constants={"zero": np.float32(0), "axis": np.array([0])},
    ),
    "a choice in a choice": Graph(
        f"""{ROWS} => (float y, float z)
        {{ s = ReduceSum <keepdims = 0> (x)  c = Greater (s, zero)
          y, z = If <then_branch = t () => (float[C, 4] a, float[D, 4] p) {{
              m = ReduceMax <keepdims = 0> (x)  d = Greater (m, one)
              a = If <then_branch = tt () => (float[A, 4] u) {{ u = MatMul (x, w) }},
                else_branch = te () => (float[B, 4] v) {{ v = Neg (x) }}> (d)
              p = Softmax (a) }},
            else_branch = e () => (float[E, 4] b, float[F, 4] q) {{
              b = Abs (x)  q = Identity (b) }}> (c) }}""",
        op="cond",
        constants={"zero": np.float32(0), "one": np.float32(1), **W},
    ),
    "a choice of sequences": Graph(
        f"""{ROWS} => (float y)
        {{ s = ReduceSum <keepdims = 0> (x)  c = Greater (s, zero)
          q = If <then_branch = t () => (seq(float) a) {{
              n = Neg (x)  a = SequenceConstruct (x, n) }},
            else_branch = e () => (seq(float) b) {{ b = SequenceConstruct (x, x) }}> (c)
          y = ConcatFromSequence <axis = 1> (q) }}""",
        op="cond",
        constants={"zero": np.float32(0)},
    ),
    "rounds as in the model": Graph(
        f"""{ROWS} => (float y, float z)
        {{ y, z = Loop <body = b (int64 i, bool c, float[N, 4] v) =>
            (bool d, float[N, 4] u, float[N, 4] r) {{
            d = Identity (c)  f = Cast <to = 1> (i)  a = Add (v, f)  m = MatMul (a, w)
            u = Tanh (m)  r = Identity (u) }}> (three, , x) }}""",
        constants={"three": np.int64(3), **W},
    ),
    "rounds as the batch is large": Graph(
        f"""{ROWS} => (float y, float z)
        {{ s = Shape <end = 1> (x)  n = Squeeze (s)
          y, z = Loop <body = b (int64 i, bool c, float[N, 4] v) =>
            (bool d, float[N, 4] u, float[N, 4] r) {{
            d = Identity (c)  f = Cast <to = 1> (i)  a = Add (v, f)  m = MatMul (a, w)
            u = Tanh (m)  r = Identity (u) }}> (n, , x) }}""",
        op="while_loop",
        constants=W,
    ),
    "rounds until a sum is small": Graph(
        f"""{ROWS} => (float y, float z)
        {{ y, z = Loop <body = b (int64 i, bool c, float[N, 4] v) =>
            (bool d, float[N, 4] u, float[N] r) {{
            u = Mul (v, half)  a = Abs (u)  m = ReduceMax <keepdims = 0> (a)
            d = Greater (m, small)  r = ReduceSum <keepdims = 0> (u, axis) }}> (most, go, x) }}""",
        op="while_loop",
        constants={
            "half": np.float32(0.5),
            "small": np.float32(0.1),
            "most": np.int64(50),
            "go": np.bool_(True),
            "axis": np.array([1]),
        },
    ),
    "rounds without a bound": Graph(
        f"""{ROWS} => (float y)
        {{ y = Loop <body = b (int64 i, bool c, float[N, 4] v) => (bool d, float[N, 4] u) {{
            u = Mul (v, half)  a = Abs (u)  m = ReduceMax <keepdims = 0> (a)
            d = Greater (m, small) }}> ( , go, x) }}""",
        op="while_loop",
        constants={"half": np.float32(0.5), "small": np.float32(0.1), "go": np.bool_(True)},
    ),
    "a scan of open length": Graph(
        f"""{STEPS} => (float h, float y)
        {{ f = ReduceMax <keepdims = 0> (x, axis)
          h, y = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1],
            body = b (float[N, 4] s, float[N, 4] e) => (float[N, 4] u, float[N, 4] r) {{
            m = MatMul (s, w)  a = Add (m, e)  u = Tanh (a)  r = Identity (u) }}> (f, x) }}""",
        steps,
        op="while_loop",
        constants={"axis": np.array([0]), **W},
    ),
    "a scan of five steps": Graph(
        """g (float[N, 5, 4] x) => (float h, float y)
        { f = ReduceMax <keepdims = 0> (x, axis)
          h, y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_directions = [1],
            body = b (float[N, 4] s, float[N, 4] e) => (float[N, 4] u, float[N, 4] r) {
            m = MatMul (s, w)  a = Add (m, e)  u = Tanh (a)  r = Identity (u) }> (f, x) }""",
        lambda rng, n, t: [rng.standard_normal((n, 5, 4), dtype=np.float32)],
        constants={"axis": np.array([1]), **W},
    ),
    "a sequence that grows": Graph(
        f"""{ROWS} => (float y)
        {{ e = SequenceEmpty ()
          q = Loop <body = b (int64 i, bool c, seq(float[N, 4]) s) =>
            (bool d, seq(float[N, 4]) u) {{ d = Identity (c)  f = Cast <to = 1> (i)  a = Mul (x, f)
            u = SequenceInsert (s, a) }}> (three, , e)
          y = ConcatFromSequence <axis = 0> (q) }}""",
        constants={"three": np.int64(3)},
    ),
    "parts in turn": Graph(
        f"""{ROWS} => (float y)
        {{ q = SplitToSequence <axis = 1> (x, sizes)  a = SequenceAt (q, last)
          r = SequenceErase (q, last)  n = SequenceLength (r)  f = Cast <to = 1> (n)
          m = Mul (a, f)  t = SequenceInsert (r, m, first)
          y = ConcatFromSequence <axis = 1> (t) }}""",
        constants={"sizes": np.array([1, 1, 2]), "last": np.int64(-1), "first": np.int64(0)},
    ),
}
SIZES = ((3, 9), (2, 6), (4, 13))
# One of each kind of control flow; exported are all.
COMPILED_IN_EACH_RUN = ("a choice by data", "rounds until a sum is small", "a scan of open length")


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())
def test_one_graph_serves_every_shape(graph: Graph) -> None:
    built = model(graph.text, **graph.constants)
    module = graph_module_from_onnx(built)
    assert set(higher_order(module)) == ({graph.op} if graph.op else set())
    example = tuple(map(torch.from_numpy, graph.feeds(np.random.default_rng(0), 3, 9)))
    assert_equals_onnxruntime(built, graph, module, exported(module, example).module())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in COMPILED_IN_EACH_RUN else pytest.mark.slow)
        for name, graph in GRAPHS.items()
        if graph.op
    ],
)
def test_inductor_compiles_the_control_flow(name: str) -> None:
    graph = GRAPHS[name]
    built = model(graph.text, **graph.constants)
    module = graph_module_from_onnx(built)
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(module, fullgraph=True, dynamic=True)
        assert_equals_onnxruntime(built, graph, compiled)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a choice by data", "a scan of open length"])
def test_a_package_holds_the_control_flow(name: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]
    built = model(graph.text, **graph.constants)
    example = tuple(map(torch.from_numpy, graph.feeds(np.random.default_rng(0), 3, 9)))
    program = exported(graph_module_from_onnx(built), example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = aoti_compile_and_package(program, package_path=str(tmp_path / "engine.pt2"))
        assert_equals_onnxruntime(built, graph, aoti_load_package(package))


def assert_equals_onnxruntime(
    built: onnx.ModelProto, graph: Graph, *runners: Callable[..., Sequence[torch.Tensor]]
) -> None:
    """Every runner gives what ONNX Runtime gives, at sizes that none of them saw."""
    session = onnxruntime.InferenceSession(built.SerializeToString(), quiet())
    names = [entry.name for entry in session.get_inputs()]
    for n, t in SIZES:
        feeds = graph.feeds(np.random.default_rng(n), n, t)
        wanted = session.run(None, dict(zip(names, feeds, strict=True)))
        for runner in runners:
            for got, want in zip(runner(*map(torch.from_numpy, feeds)), wanted, strict=True):
                np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def higher_order(module: torch.fx.GraphModule) -> list[str]:
    """What control flow the graph leaves to torch."""
    kinds = [getattr(node.target, "__name__", "") for node in module.graph.nodes]
    return [kind for kind in kinds if kind in ("cond", "while_loop")]


def quiet() -> onnxruntime.SessionOptions:
    """It warns of outputs without declared shapes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return options


def exported(
    module: torch.fx.GraphModule, inputs: tuple[torch.Tensor, ...]
) -> torch.export.ExportedProgram:
    """Export with every axis open."""
    dims = tuple(dict.fromkeys(range(x.ndim), Dim.AUTO) for x in inputs)
    with warnings.catch_warnings():
        # torch's own deprecations inside export are not ours to mend.
        warnings.simplefilter("ignore")
        return torch.export.export(module, inputs, dynamic_shapes=dims, strict=False)
