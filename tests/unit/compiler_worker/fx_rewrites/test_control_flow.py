"""Graphs with branches and loops: their parts are left alone, what is around them is rewritten."""

from typing import Any

import onnx
import pytest
import torch
from onnx import parser
from torch import nn
from torch.export import Dim

from compiler_worker.fx_rewrites.names import NAMES
from compiler_worker.fx_rewrites.rewrite import rewrite_graph
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from tests.unit.compiler_worker.fx_rewrites.rewritten import Case

aten = torch.ops.aten
DYNAMIC: tuple[dict[int, Any], ...] = ({0: Dim("batch", min=1, max=8)}, {})
MAX_REL_L2 = 1e-6
# Two projections of one value, a written norm and a double cast: outside, and in the part itself.
_WORK = """
  {0}a = MatMul ({1}, wa)
  {0}b = MatMul ({1}, wb)
  {0}sum = Add ({0}a, {0}b)
  {0}mean = ReduceMean <keepdims = 1> ({0}sum, last)
  {0}centred = Sub ({0}sum, {0}mean)
  {0}squares = Mul ({0}centred, {0}centred)
  {0}variance = ReduceMean <keepdims = 1> ({0}squares, last)
  {0}safe = Add ({0}variance, epsilon)
  {0}root = Sqrt ({0}safe)
  {0}normed = Div ({0}centred, {0}root)
  {0}wide = Cast <to = 11> ({0}normed)
  {0}out = Cast <to = 1> ({0}wide)
"""
_CONSTANTS = """
<float[4,4] wa = {1,2,3,4, 5,6,7,8, 1,0,1,0, 2,-2,2,-2},
 float[4,4] wb = {0,1,0,2, 1,1,-1,3, 2,2,2,2, 1,0,4,1},
 int64[1] last = {-1}, float epsilon = {0.001}>
"""
_BRANCHES = (
    """
<ir_version: 10, opset_import: ["" : 20]>
branches (float[batch, 4] x, bool choice) => (float[batch, 4] y)
"""
    + _CONSTANTS
    + """
{
"""
    + _WORK.format("o_", "x")
    + """
  picked = If (choice) <
    then_branch = yes () => (float[batch, 4] t_out) {
"""
    + _WORK.format("t_", "o_out")
    + """
    },
    else_branch = no () => (float[batch, 4] e_out) { e_out = Mul (o_out, x) }
  >
"""
    + _WORK.format("p_", "picked")
    + """
  y = Add (p_out, o_out)
}
"""
)
_LOOP = (
    """
<ir_version: 10, opset_import: ["" : 20]>
loop (float[batch, 4] x, int64 choice) => (float[batch, 4] y)
"""
    + _CONSTANTS
    + """
{
"""
    + _WORK.format("o_", "x")
    + """
  whole = Loop (choice, "", o_out) <
    body = step (int64 i, bool go, float[batch, 4] state) => (bool go_on, float[batch, 4] next) {
      go_on = Identity (go)
"""
    + _WORK.format("s_", "state")
    + """
      next = Add (s_out, state)
    }
  >
  y = Add (whole, o_out)
}
"""
)
CASES = {"If": (_BRANCHES, (True, False)), "Loop": (_LOOP, (0, 1, 3))}
CALLS = {"If": torch.ops.higher_order.cond, "Loop": torch.ops.higher_order.while_loop}
# These change what CUDA alone has kernels for.
REWRITES = [name for name in NAMES if name not in ("short_attention", "fused_convolutions")]


@pytest.mark.parametrize("kind", CASES)
def test_a_rewritten_graph_with_parts_of_its_own_answers_the_same(kind: str) -> None:
    text, choices = CASES[kind]
    model: onnx.ModelProto = parser.parse_model(text)
    example = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    inputs = (example, torch.tensor(choices[-1]))
    case = Case(graph_module_from_onnx(model), inputs, REWRITES, DYNAMIC)
    assert case.num_calls(CALLS[kind]) == 1
    # Around the part, not in it: once before it, with a branch once more behind it.
    num_outside = 2 if kind == "If" else 1
    found = {name: count for name, count in case.counts.items() if count}
    wanted = dict.fromkeys(("casts", "layer_norms", "projections"), num_outside)
    assert {name: found.get(name) for name in wanted} == wanted
    for choice in choices:
        for batch in (1, 5):
            x = torch.randn(batch, 4, generator=torch.Generator().manual_seed(batch))
            case.check(x, torch.tensor(choice), max_rel_l2=MAX_REL_L2)


class Halves(nn.Module):
    """A branch that holds a weight of its own, which nothing outside of it reads."""

    weight: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: float32 [4]."""
        return x * self.weight


def test_weights_inside_a_part_are_kept_and_unread_ones_go() -> None:
    inner = torch.export.export(Halves(), (torch.ones(4),)).module(check_guards=False)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(4)
    part = graph.get_attr("part")
    called = graph.call_function(torch.ops.higher_order.invoke_subgraph, (part, "part", x))
    graph.output((graph.call_function(lambda pair: pair[0], (called,)),))
    outer = torch.fx.GraphModule({"part": inner, "unread": torch.ones(2)}, graph)
    outer.register_buffer("unread", torch.ones(2))
    rewrite_graph(outer, REWRITES)
    assert [name for name, _ in outer.named_buffers()] == ["part.weight"]


_RECURRENT = """
<ir_version: 10, opset_import: ["" : 20]>
layer (float[steps, 2, 4] x) => (float[steps, 1, 2, 3] y)
<float[1,12,4] w = {WIDE}, float[1,12,3] r = {DEEP}, float zero = {0}, int64[3] size = {1, 2, 3}>
{
  z = Expand (zero, size)
  y = LSTM <hidden_size = 3> (x, w, r, "", "", z, z)
}
"""


def test_what_goes_round_a_loop_stays_apart() -> None:
    """An LSTM's two states of one tensor: torch compiles no loop that carries one twice."""
    wide, deep = (", ".join(str(n % 5 - 2) for n in range(12 * k)) for k in (4, 3))
    text = _RECURRENT.replace("WIDE", wide).replace("DEEP", deep)
    module = graph_module_from_onnx(parser.parse_model(text))
    inputs = (torch.randn(5, 2, 4),)
    case = Case(module, inputs, REWRITES, ({0: Dim("steps", min=2, max=99)},))
    (loop,) = (node for node in case.graph.graph.nodes if node.target is CALLS["Loop"])
    carried = loop.args[2]
    assert len(set(carried)) == len(carried) == 4
    torch.testing.assert_close(case.graph(*inputs), case.before(*inputs))
