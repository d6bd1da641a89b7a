"""The module itself: weights by reference, names, types, device and the two worlds."""

from __future__ import annotations

import copy
import operator
import pickle

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.onnx_to_fx.dtypes import tensor_sharing_memory
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

LINEAR = "g (float[N, 3] x) => (float[N, 2] y) { h = MatMul(x, w.0)  y = Add(h, b) }"
RNG = np.random.default_rng(0)
W = RNG.standard_normal((3, 2), dtype=np.float32)
B = RNG.standard_normal(2, dtype=np.float32)


def linear() -> onnx.ModelProto:
    """X W + b, with a name that Python cannot spell."""
    built = model(LINEAR.replace("w.0", "w"), w=W, b=B)
    built.graph.initializer[0].name = "w.0"
    built.graph.node[0].input[1] = "w.0"
    return built


def node_names(module: torch.fx.GraphModule) -> list[object]:
    """Targets of all calls in the graph."""
    return [node.target for node in module.graph.nodes if node.op.startswith("call")]


def test_inputs_and_outputs_keep_the_order_of_the_graph() -> None:
    graph = """g (float[N] a, float[N] b) => (float[N] d, float[N] s)
        { s = Add(a, b)  d = Sub(a, b) }"""
    module = graph_module_from_onnx(model(graph))
    difference, total = module(torch.tensor([3.0]), torch.tensor([1.0]))
    assert (difference.item(), total.item()) == (2.0, 4.0)
    assert module.meta["inputs"] == ["a", "b"]
    assert module.meta["outputs"] == ["d", "s"]


def test_weights_keep_their_names_and_need_no_gradient() -> None:
    module = graph_module_from_onnx(linear())
    names = {name: attribute for attribute, name in module.meta["initializers"].items()}
    assert set(names) == {"w.0", "b"}
    parameters = dict(module.named_parameters())
    np.testing.assert_array_equal(parameters[names["w.0"]], W)
    np.testing.assert_array_equal(parameters[names["b"]], B)
    assert not any(parameter.requires_grad for parameter in parameters.values())


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.bool_, ml_dtypes.bfloat16])
def test_every_element_type_is_shared(dtype: type) -> None:
    array = np.ones((2, 3), dtype)
    tensor = tensor_sharing_memory(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert tuple(tensor.shape) == array.shape


def test_the_weights_outlive_the_model() -> None:
    module = graph_module_from_onnx(linear())
    x = torch.ones(4, 3)
    torch.testing.assert_close(module(x)[0], x @ torch.from_numpy(W) + torch.from_numpy(B))


def test_the_module_can_be_copied_and_pickled() -> None:
    module = graph_module_from_onnx(linear())
    x = torch.ones(2, 3)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(other(x)[0], module(x)[0])


MASKED = """g (float[N] x, bool[N] keep) => (float[N] y)
    { kept = Where(keep, x, low)  mask = Cast <to: int = 1> (keep)  y = Add(kept, mask) }"""
LOWEST = np.float32(np.finfo(np.float32).min)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_float_dtype_moves_weights_casts_and_constants(dtype: torch.dtype) -> None:
    module = graph_module_from_onnx(model(MASKED, low=LOWEST), float_dtype=dtype)
    (y,) = module(torch.ones(2, dtype=dtype), torch.tensor([True, False]))
    assert y.dtype == dtype
    # A finite mask constant stays finite: it saturates at the type's own limit.
    assert torch.isfinite(y).all()
    assert y[0] == 2


@pytest.mark.parametrize("move", ["half", "double"])
def test_moving_the_module_moves_casts_and_made_tensors(move: str) -> None:
    graph = """g (bool[N] keep) => (float[N, 2] y)
        { x = Cast <to: int = 1> (keep)  c = Unsqueeze(x, one)
          k = ConstantOfShape <value: tensor = float[1] {2.0}> (two)  y = Mul(c, k) }"""
    built = model(graph, one=np.array([1]), two=np.array([2]))
    module = getattr(graph_module_from_onnx(built), move)()
    (y,) = module(torch.tensor([True, False]))
    assert y.dtype == getattr(torch.zeros(()), move)().dtype
    assert y.tolist() == [[2.0, 2.0], [0.0, 0.0]]


def test_tensors_made_in_the_graph_follow_the_inputs_to_their_device() -> None:
    graph = """g (float[N] x) => (int64[N] y)
        { s = Shape(x)  n = Squeeze(s)  r = Range(zero, n, one)  y = Add(r, r) }"""
    module = graph_module_from_onnx(model(graph, zero=np.int64(0), one=np.int64(1)))
    (y,) = module(torch.empty(5, device="meta"))
    assert y.device.type == "meta"
    (y,) = module(torch.empty(3))
    assert y.tolist() == [0, 2, 4]


def test_constants_without_inputs_follow_the_module_to_its_device() -> None:
    graph = "g () => (float[2, 3] y) { y = ConstantOfShape <value: tensor = float[1] {1.5}> (s) }"
    module = graph_module_from_onnx(model(graph, s=np.array([2, 3])))
    assert module.to("meta")()[0].device.type == "meta"


def test_shape_arithmetic_stays_on_the_host() -> None:
    graph = """g (float[N, S, 6] x) => (float[N, S, 2, 3] y)
        { s = Shape(x)  n = Gather(s, zero)  t = Gather(s, one)
          n1 = Unsqueeze(n, front)  t1 = Unsqueeze(t, front)
          target = Concat <axis = 0> (n1, t1, rest, three)  y = Reshape(x, target) }"""
    built = model(
        graph,
        zero=np.int64(0),
        one=np.int64(1),
        front=np.array([0]),
        rest=np.array([-1]),
        three=np.array([3]),
    )
    module = graph_module_from_onnx(built)
    sizes = torch.ops.aten.sym_size.int
    assert node_names(module) == [sizes, sizes, torch.reshape]
    # The -1 is known to be 2 in every call, because both symbols cancel.
    reshape = next(node for node in module.graph.nodes if node.target is torch.reshape)
    assert list(reshape.args[1][2:]) == [2, 3]
    assert module(torch.zeros(5, 4, 6))[0].shape == (5, 4, 2, 3)


def test_arithmetic_on_symbols_runs_on_python_ints() -> None:
    graph = """g (float[N] x) => (float[M] y)
        { s = Shape(x)  d = Mul(s, two)  h = Div(d, three)  y = Expand(one_f, h) }"""
    built = model(graph, two=np.array([2]), three=np.array([3]), one_f=np.ones(1, np.float32))
    module = graph_module_from_onnx(built)
    assert {operator.mul, operator.floordiv} <= set(node_names(module))
    assert module(torch.zeros(8))[0].shape == (5,)


@pytest.mark.parametrize(("is_c", "wanted"), [(0, [1, -1, 1, 3]), (1, [-1, 1, -2, 3])])
def test_a_remainder_on_the_host_has_the_sign_that_the_op_says(
    is_c: int, wanted: list[int]
) -> None:
    graph = f"""g (float[N] x) => (int64[4] y, int64[1] z)
        {{ y = Mod <fmod: int = {is_c}> (a, b)
           s = Shape(x)  z = Mod <fmod: int = {is_c}> (s, three) }}"""
    a, b, three = np.array([-7, 7, -8, 8]), np.array([2, -2, 3, 5]), np.array([3])
    module = graph_module_from_onnx(model(graph, a=a, b=b, three=three))
    y, z = module(torch.zeros(8))
    assert (y.tolist(), z.tolist()) == (wanted, [2])


def test_a_size_that_is_zero_in_a_call_copies_the_axis() -> None:
    graph = """g (float[N, 6] x, float[M] z) => (float[A, B] y)
        { m = Shape(z)  t = Concat <axis: int = 0> (m, six)  y = Reshape(x, t) }"""
    module = graph_module_from_onnx(model(graph, six=np.array([6])))
    for rows, others in ((4, 0), (4, 4), (0, 0)):
        assert module(torch.zeros(rows, 6), torch.zeros(others))[0].shape == (rows, 6)


def test_inputs_that_share_a_dim_share_a_symbol() -> None:
    graph = """g (float[N] a, float[N] b) => (float[K] y)
        { s = Shape(b)  d = Mul(s, two)  y = Expand(one_f, d) }"""
    module = graph_module_from_onnx(model(graph, two=np.array([2]), one_f=np.ones(1, np.float32)))
    placeholder, *_ = module.graph.nodes
    size = next(n for n in module.graph.nodes if n.target is torch.ops.aten.sym_size.int)
    assert size.args[0] is placeholder


def test_a_dim_that_may_broadcast_is_left_to_the_call() -> None:
    graph = "g (float[N] x, float[M] z) => (float[K] y) { s = Shape(z)  y = Expand(x, s) }"
    module = graph_module_from_onnx(model(graph))
    for n, m in ((1, 4), (4, 1), (3, 3), (1, 1)):
        assert module(torch.zeros(n), torch.zeros(m))[0].shape == (max(n, m),)


def test_host_values_reach_the_device_where_data_needs_them() -> None:
    graph = """g (float[N, 3] x) => (int64[2] s, int64 n, int64[N, 3] c)
        { s = Shape(x)  n = Size(x)  i = Cast <to: int = 7> (x)  c = Add(i, n) }"""
    s, n, c = graph_module_from_onnx(model(graph))(torch.ones(2, 3))
    assert s.tolist() == [2, 3]
    assert n.item() == 6
    assert c.tolist() == [[7, 7, 7], [7, 7, 7]]


def test_integers_wrap_as_their_type_does() -> None:
    graph = """g (float[N] x) => (int32[1] y, int32[1] z)
        { h = Mul(a, b)  y = Add(h, b)  z = Cast <to: int = 6> (c) }"""
    constants = {"a": np.array([2**30], np.int32), "b": np.array([5], np.int32)}
    built = model(graph, **constants, c=np.array([2**33 + 7]))
    y, z = graph_module_from_onnx(built)(torch.zeros(1))
    assert (y.tolist(), z.tolist()) == ([2**30 + 5], [7])


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ("y = Mul(i, large)", -(2**31)),
        ("m = Mul(i, large)  y = Div(m, four)", -(2**29)),
        ("b = Mul(s, large_64)  y = Cast <to: int = 6> (b)", -(2**31)),
        ("m = Sub(four, i)  d = Mul(m, m)  e = Neg(d)  y = Div(e, i)", 0),
        ("m = Neg(i)  y = Div(m, four)", -1),
    ],
)
def test_sizes_in_32_bits_wrap_and_divide_as_their_type_does(nodes: str, wanted: int) -> None:
    graph = (
        f"g (float[N] x) => (int32[1] y) {{ s = Shape(x)  i = Cast <to: int = 6> (s)  {nodes} }}"
    )
    narrow = {"large": np.array([2**30], np.int32), "four": np.array([4], np.int32)}
    built = model(graph, **narrow, large_64=np.array([2**30]))
    (y,) = graph_module_from_onnx(built)(torch.zeros(6))
    assert (y.dtype, y.tolist()) == (torch.int32, [wanted])


def test_sizes_in_32_bits_that_stay_there_are_exported_as_they_are() -> None:
    graph = """g (float[N, 4] x) => (float[M] y)
        { s = Shape <end: int = 1> (x)  i = Cast <to: int = 6> (s)  m = Mul(i, four)
          t = Cast <to: int = 7> (m)  y = Reshape(x, t) }"""
    module = graph_module_from_onnx(model(graph, four=np.array([4], np.int32)))
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(module, (torch.zeros(3, 4),), dynamic_shapes=({0: rows},))
    assert operator.mod not in node_names(program.module())
    assert program.module()(torch.zeros(64, 4))[0].shape == (256,)


@pytest.mark.parametrize("name", ["0", "self", "lambda", "a.b", "class"])
def test_inputs_may_have_any_name(name: str) -> None:
    built = model("g (float[N] x, float[N] a_b) => (float[N] y) { y = Sub(x, a_b) }")
    built.graph.input[0].name = built.graph.node[0].input[0] = name
    module = graph_module_from_onnx(built)
    assert module(torch.tensor([3.0]), torch.tensor([1.0]))[0].tolist() == [2.0]
    assert module.meta["inputs"] == [name, "a_b"]


def test_local_functions_are_inlined() -> None:
    built = model("g (float[N] x) => (float[N] y) { y = local.Twice(x) }")
    built.opset_import.append(onnx.helper.make_opsetid("local", 1))
    body = onnx.helper.make_node("Add", ["a", "a"], ["r"])
    imports = [onnx.helper.make_opsetid("", 20)]
    built.functions.append(
        onnx.helper.make_function("local", "Twice", ["a"], ["r"], [body], imports)
    )
    assert graph_module_from_onnx(built)(torch.ones(2))[0].tolist() == [2.0, 2.0]


def test_initializers_that_are_also_inputs_are_weights() -> None:
    graph = "g (float[N] x, float[1] w) => (float[N] y) { y = Mul(x, w) }"
    module = graph_module_from_onnx(model(graph, w=np.array([3.0], np.float32)))
    assert module.meta["inputs"] == ["x"]
    assert module(torch.ones(2))[0].tolist() == [3.0, 3.0]
