"""Slices by bounds of every sign and size, written down or computed from shapes."""

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

BOUNDS = (-(2**63) + 1, -9, -5, -1, 0, 2, 5, 9, 2**63 - 1)
# Of [7, 5]: what is sliced, or what is sliced of its shape.
X = np.arange(35, dtype=np.float32).reshape(7, 5)
STATIC = "g (float[N, 5] x) => (float[A, B] y) { y = Slice(x, start, end, axis, step) }"
ON_HOST = """g (float[N, 5] x) => (int64[A] y)
    { s = Shape(x)  t = Concat <axis = 0> (s, s, s)  y = Slice(t, start, end, front, step) }"""
# Bounds that the size of the sliced axis moves over its front and end.
SYMBOLIC = """g (float[N, 5] x) => (float[A, B] y)
    { n = Shape <end = 1> (x)  a = Sub(start, n)  b = Sub(end, n)
      y = Slice(x, a, b, front, step) }"""


def both(built: onnx.ModelProto, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the importer makes of a model, and what ONNX Runtime does."""
    (found,) = graph_module_from_onnx(built)(torch.from_numpy(x))
    (wanted,) = onnxruntime.InferenceSession(built.SerializeToString()).run(None, {"x": x})
    return found.numpy(), np.asarray(wanted)


@pytest.mark.parametrize("step", [1, 2, -1, -3])
@pytest.mark.parametrize("graph", [STATIC, ON_HOST], ids=["of data", "of a shape"])
def test_constant_bounds(graph: str, step: int) -> None:
    # Backwards to the largest integer is nothing in ONNX, and everything in ONNX Runtime.
    ends = BOUNDS if step > 0 else BOUNDS[:-1]
    for start, end in itertools.product(BOUNDS, ends):
        bounds = {"start": start, "end": end, "axis": 1, "front": 0, "step": step}
        built = model(graph, **{name: np.array([n]) for name, n in bounds.items()})
        np.testing.assert_array_equal(*both(built, X), err_msg=f"[{start}:{end}:{step}]")


@pytest.mark.parametrize("step", [1, 2, -1, -3])
def test_bounds_from_shapes(step: int) -> None:
    for start, end in itertools.product(range(-3, 13, 3), range(-2, 13, 3)):
        bounds = {"start": start, "end": end, "front": 0, "step": step}
        built = model(SYMBOLIC, **{name: np.array([n]) for name, n in bounds.items()})
        for rows in (0, 1, 4, 7):
            case = f"[{start - rows}:{end - rows}:{step}] of {rows}"
            np.testing.assert_array_equal(*both(built, X[:rows]), err_msg=case)


def test_a_slice_backwards_by_a_size_is_exported_for_every_size() -> None:
    bounds = {"start": -1, "end": 2, "front": 0, "step": -1}
    built = model(
        SYMBOLIC.replace("a = Sub(start, n)", "a = Identity(start)"),
        **{name: np.array([n]) for name, n in bounds.items()},
    )
    rows = torch.export.Dim("rows", min=5, max=64)
    program = torch.export.export(
        graph_module_from_onnx(built),
        (torch.from_numpy(X),),
        dynamic_shapes=({0: rows},),
        strict=False,
    )
    for count in (5, 7, 64):
        x = torch.randn(count, 5)
        assert torch.equal(program.module()(x)[0], x.flip(0)[: count - 3])
