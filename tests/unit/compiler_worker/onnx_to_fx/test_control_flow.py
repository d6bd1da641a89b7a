"""Control flow and sequences: what is resolved while importing, and what is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.onnx_to_fx.control_flow.unrolled import MAX_UNROLLED_NODES
from services.contracts.errors import UnsupportedGraphError
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

ROWS = "g (float[N, 4] x"
BODY = "b (int64 i, bool c, float[N, 4] v) => (bool d, float[A, B] u"
OPEN = "only the call knows"
# What is refused, the op it is refused at, and words of the reason.
REFUSED = {
    "branches of two ranks": (
        f"""{ROWS}, bool c) => (float y) {{ [here] y = If <
        then_branch = t () => (float a) {{ a = Relu (x) }},
        else_branch = e () => (float b) {{ b = Unsqueeze (x, zero) }}> (c) }}""",
        "If",
        "FLOAT of rank 2 and FLOAT of rank 3, and only the call knows",
    ),
    "branches of two forms": (
        f"""{ROWS}, bool c) => (float y) {{ [here] s = If <
        then_branch = t () => (seq(float) a) {{ a = SequenceConstruct (x) }},
        else_branch = e () => (seq(float) b) {{ b = SequenceConstruct (x, x) }}> (c)
        y = ConcatFromSequence <axis = 0> (s) }}""",
        "If",
        "a sequence of 1 and a sequence of 2, and only the call knows",
    ),
    "an op in a branch": (
        f"""{ROWS}, bool c) => (float y) {{ y = If <
        then_branch = t () => (float a) {{ [here] a = RandomNormalLike (x) }},
        else_branch = e () => (float b) {{ b = Relu (x) }}> (c) }}""",
        "RandomNormalLike",
        "ONNX defines no generator",
    ),
    "what grows in every round": (
        f"""{ROWS}, int64 n) => (float y) {{ [here] y = Loop <body = {BODY}) {{
        d = Identity (c)  u = Concat <axis = 0> (v, v) }}> (n, , x) }}""",
        "Loop",
        f"found FLOAT[?, 4] before and FLOAT[?, 4] after a round, and {OPEN}",
    ),
    "what grows by rows that only the call counts": (
        f"""{ROWS}, float[M, 4] z, int64 n) => (float y) {{ [here] y = Loop <body = {BODY}) {{
        d = Identity (c)  s = Add (x, z)  u = Concat <axis = 0> (v, s) }}> (n, , x) }}""",
        "Loop",
        f"found FLOAT[?, 4] before and FLOAT[?, 4] after a round, and {OPEN}",
    ),
    "a sequence that grows in open rounds": (
        f"""{ROWS}, int64 n) => (float y) {{ e = SequenceEmpty ()
        [here] s = Loop <body = b (int64 i, bool c, seq(float[N, 4]) v) =>
        (bool d, seq(float[N, 4]) u) {{ d = Identity (c)  u = SequenceInsert (v, x) }}> (n, , e)
        y = ConcatFromSequence <axis = 0> (s) }}""",
        "Loop",
        f"it carries a sequence and {OPEN}",
    ),
    "rows without a bound": (
        f"""{ROWS}, int64 n) => (float y, float z) {{ [here] y, z = Loop <body = {BODY},
        float[N, 4] r) {{ d = Identity (c)  u = Relu (v)  r = Neg (v) }}> (n, , x) }}""",
        "Loop",
        "nothing known before the call bounds the length",
    ),
    "a body of too few outputs": (
        f"""{ROWS}) => (float y) {{ [here] y = Loop <body =
        b (int64 i, bool c, float[N, 4] v) => (bool d) {{ d = Identity (c) }}> (one, , x) }}""",
        "Loop",
        "its body gives 1 outputs for 1 carried",
    ),
    "a body of too few inputs": (
        f"""{ROWS}) => (float y) {{ [here] y = Loop <body =
        b (int64 i, bool c) => (bool d, float[N, 4] u) {{ d = Identity (c)  u = Neg (x) }}>
        (one, , x) }}""",
        "Loop",
        "graph 'b' takes 2 inputs, 3 are given",
    ),
    "a place that is data": (
        f"""{ROWS}, int64 n) => (float y) {{ s = SequenceConstruct (x, x)
        [here] y = SequenceAt (s, n) }}""",
        "SequenceAt",
        "('n') depends on input values",
    ),
    "a place outside": (
        f"""{ROWS}) => (float y) {{ s = SequenceConstruct (x)  [here] y = SequenceAt (s, one) }}""",
        "SequenceAt",
        "position [1] is outside of a sequence of 1",
    ),
    "parts of an open axis": (
        f"""{ROWS}) => (float y) {{ [here] s = SplitToSequence <axis = 0> (x)
        y = SequenceAt (s, nought) }}""",
        "SplitToSequence",
        "would depend on the call's sizes",
    ),
    "an optional without an element": (
        f"""{ROWS}) => (float y) {{ o = Optional <type: type_proto = optional(float[N])> ()
        [here] y = OptionalGetElement (o) }}""",
        "OptionalGetElement",
        "has no element",
    ),
    "a sequence where a tensor goes": (
        f"""{ROWS}) => (float y) {{ s = SequenceConstruct (x)  [here] y = Relu (s) }}""",
        "Relu",
        "found a sequence where it takes a tensor",
    ),
}
CONSTANTS = {"zero": np.array([0]), "nought": np.int64(0), "one": np.int64(1)}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_refusals_name_the_node(case: tuple[str, str, str]) -> None:
    text, op_type, words = case
    with pytest.raises(UnsupportedGraphError) as caught:
        graph_module_from_onnx(model(text, **CONSTANTS))
    error = caught.value
    assert (error.op_type, error.node, error.opset) == (op_type, "here", 20)
    assert words in error.reason


def counted(rounds: int) -> onnx.ModelProto:
    """A loop of two nodes that runs so often."""
    text = f"""{ROWS}) => (float y) {{ y = Loop <body = {BODY}) {{
        d = Identity (c)  u = Add (v, v) }}> (n, , x) }}"""
    return model(text, n=np.int64(rounds))


def targets(module: torch.fx.GraphModule) -> list[str]:
    """Names of what the graph calls."""
    return [getattr(node.target, "__name__", "") for node in module.graph.nodes]


def test_rounds_are_written_out_up_to_the_bound() -> None:
    assert targets(graph_module_from_onnx(counted(3))).count("add") == 3
    most = MAX_UNROLLED_NODES // 2
    assert "while_loop" not in targets(graph_module_from_onnx(counted(most)))
    above = targets(graph_module_from_onnx(counted(most + 1)))
    assert "while_loop" in above
    assert "add" not in above


def test_rounds_of_no_node_count_too() -> None:
    text = f"""{ROWS}) => (float y) {{ y = Loop <body = b (int64 i, bool c, float[N, 4] v)
        => (bool c, float[N, 4] v) {{ }}> (n, , x) }}"""
    module = graph_module_from_onnx(model(text, n=np.int64(MAX_UNROLLED_NODES + 1)))
    assert "while_loop" in targets(module)


@pytest.mark.parametrize(("number", "want"), [(3.0, "relu"), (-3.0, "neg")])
def test_a_condition_of_constants_is_decided_at_import(number: float, want: str) -> None:
    text = f"""{ROWS}) => (float y) {{ s = Sqrt (k)  p = Mul (s, k)  c = Greater (p, zero)
        y = If <then_branch = t () => (float a) {{ a = Relu (x) }},
            else_branch = e () => (float b) {{ b = Neg (x) }}> (c) }}"""
    numbers = {"k": np.float32([number]), "zero": np.float32([0])}
    module = graph_module_from_onnx(model(text, **numbers))
    assert targets(module).count(want) == 1
    assert not {"cond", "sqrt", "relu", "neg"} & set(targets(module)) - {want}


def test_a_loop_of_no_round_stacks_nothing() -> None:
    text = f"""{ROWS}) => (float y, float z) {{ y, z = Loop <body = {BODY}, float[N, 2] r) {{
        d = Identity (c)  u = Relu (v)  r = Slice (v, zero, two, one) }}> (none, , x) }}"""
    numbers = {"none": np.int64(0), "zero": np.array([0]), "two": np.array([2])}
    built = model(text, one=np.array([1]), **numbers)
    x = torch.randn(3, 4)
    y, z = graph_module_from_onnx(built)(x)
    assert torch.equal(y, x)
    assert z.shape == (0, 3, 2)


def test_weights_of_a_body_are_shared_by_its_rounds() -> None:
    text = f"""{ROWS}) => (float y) {{ y = Loop <body = {BODY})
        <float[4, 4] w = {{1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}}>
        {{ d = Identity (c)  u = MatMul (v, w) }}> (n, , x) }}"""
    module = graph_module_from_onnx(model(text, n=np.int64(5)))
    assert targets(module).count("matmul") == 5
    assert [tuple(p.shape) for p in module.parameters()] == [(4, 4)]


def test_a_body_sees_the_values_around_it_at_every_depth() -> None:
    text = f"""{ROWS}, bool p, int64 n) => (float y) {{ k = Exp (x)  s = Shape <end = 1> (k)
        y = Loop <body = {BODY}) {{ d = Identity (c)
            u = If <then_branch = t () => (float a) {{ a = Add (k, v) }},
                else_branch = e () => (float b) {{ t = Cast <to = 1> (s)  b = Mul (v, t) }}> (p)
        }}> (n, , x) }}"""
    module = graph_module_from_onnx(model(text))
    x = torch.randn(3, 4)
    (added,) = module(x, torch.tensor(True), torch.tensor(4))
    torch.testing.assert_close(added, x + 4 * x.exp())
    (scaled,) = module(x, torch.tensor(False), torch.tensor(4))
    torch.testing.assert_close(scaled, x * 3**4)


def test_control_flow_follows_the_module_to_another_float_type() -> None:
    text = f"""{ROWS}, int64 n) => (float y) {{ y = Loop <body = {BODY}) {{
        d = Identity (c)  f = Cast <to = 1> (i)  u = Add (v, f) }}> (n, , x) }}"""
    (got,) = graph_module_from_onnx(model(text)).double()(
        torch.zeros(2, 4, dtype=torch.float64), torch.tensor(4)
    )
    assert got.dtype == torch.float64
    assert got.unique().tolist() == [6.0]
