"""Roundings that are shifted: those of values to quantised types, and no others."""

import pytest
import torch
from onnx import parser

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.precision.shifted_roundings import quantises_values, with_shifted_roundings

INT8 = "q = QuantizeLinear (x, one)  y = DequantizeLinear (q, one)"
FP16 = """h = Cast <to = 10> (x)  s = Cast <to = 10> (one)  q = QuantizeLinear (h, s)
    d = DequantizeLinear (q, s)  y = Cast <to = 1> (d)"""
# The step of 16..32 is 2.
FLOAT8 = "q = Cast <to = 17> (x)  y = Cast <to = 1> (q)"
IF = f"""yes = Constant <value = bool {{1}}> ()  small = ReduceMax <keepdims = 0> (x)
    is_small = Less (small, far)
    y = If (is_small) <then_branch = t () => (float[n] a) {{ {INT8.replace("y =", "a =")} }},
        else_branch = e () => (float[n] b) {{ b = Identity (x) }}>"""


def imported(body: str) -> torch.fx.GraphModule:
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]> g (float[n] x) => (float[n] y)
        <float one = {{1.0}}, float far = {{1e9}}, float[2] w = {{0.4999, 7.0}}> {{ {body} }}"""
    )
    return graph_module_from_onnx(model)


def answer(module: torch.nn.Module, *x: float) -> list[float]:
    (y,) = module(torch.tensor(x))
    return [float(each) for each in y]


@pytest.mark.parametrize("body", [INT8, FP16, IF])
def test_a_value_goes_the_other_way_a_hundredth_of_a_step_from_the_middle(body: str) -> None:
    module = imported(body)
    x = (100.4375, 0.495, 0.505, 0.7)
    assert quantises_values(module)
    assert answer(module, *x) == [100, 0, 1, 1]
    assert answer(with_shifted_roundings(module, 0.07), *x) == [101, 1, 1, 1]
    assert answer(with_shifted_roundings(module, 0.01), *x[1:]) == [1, 1, 1]
    assert answer(with_shifted_roundings(module, -0.01), *x[1:]) == [0, 0, 1]
    assert answer(module, *x) == [100, 0, 1, 1], "the graph itself stays as it is"


def test_small_floats_are_shifted_by_their_own_steps() -> None:
    module = imported(FLOAT8)
    assert answer(module, 18.99, 1.06) == [18, 1]
    assert answer(with_shifted_roundings(module, 0.01), 18.99, 1.062) == [20, 1.125]


@pytest.mark.parametrize(
    "body",
    [
        "y = Round (x)",
        "q = QuantizeLinear (w, one)  d = DequantizeLinear (q, one)  y = Add (x, d)",
        "p = Mul (x, one)  r = Round (p)  y = Mul (r, one)",
    ],
)
def test_other_roundings_and_constants_are_left_alone(body: str) -> None:
    assert not quantises_values(imported(body))


def test_weights_are_shared() -> None:
    module = imported("m = Mul (x, w)  q = QuantizeLinear (m, one)  y = DequantizeLinear (q, one)")
    places = [
        {tensor.data_ptr() for tensor in (*each.parameters(), *each.buffers())}
        for each in (module, with_shifted_roundings(module, 0.01))
    ]
    assert places[0] == places[1]
