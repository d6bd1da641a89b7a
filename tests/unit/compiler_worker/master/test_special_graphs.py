"""Masters of graphs that a library's passes get wrong: branches, sequences, other domains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import parser

from compiler_worker.master.opened import MODEL_FILE, StoredMaster
from compiler_worker.master.stored import store_onnx
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from tests.conformance.trees import classifier, regressor

Save = Callable[..., Path]
HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n g (float[N, 4] x) => (float[A, B] y)'
GRAPHS = {
    # The inner branch gives a value of the branch around it as it is.
    "a branch in a branch": """{ s = ReduceSum <keepdims = 0> (x)
        z = Constant <value_float = 0.0> ()  c = Greater (s, z)
        y = If <then_branch = t () => (float[C, 4] a) {
              h = Exp (x)  m = ReduceMax <keepdims = 0> (h)  d = Greater (m, s)
              a = If <then_branch = tt () => (float[D, 4] u) { u = Identity (h) },
                      else_branch = te () => (float[E, 4] v) { v = Neg (h) }> (d) },
            else_branch = e () => (float[F, 4] b) { b = Abs (x) }> (c) }""",
    "a sequence through a loop": """{ e = SequenceEmpty ()  n = Constant <value_int = 3> ()
        q = Loop <body = b (int64 i, bool c, seq(float[N, 4]) s) => (bool d, seq(float[N, 4]) u) {
            d = Identity (c)  f = Cast <to = 1> (i)  a = Mul (x, f)  u = SequenceInsert (s, a)
        }> (n, , e)
        y = ConcatFromSequence <axis = 0> (q) }""",
}


@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS.keys())
def test_control_flow_stays_what_it_was(text: str, save: Save, tmp_path: Path) -> None:
    path = save(parser.parse_model(HEAD + text))
    stored = store_onnx(path, tmp_path / "target")
    for sign in (1, -1):
        feeds = {"x": sign * np.arange(8, dtype=np.float32).reshape(2, 4) / 8}
        wanted, found = (ran(each, feeds) for each in (path, stored.files[MODEL_FILE]))
        np.testing.assert_array_equal(found[0], wanted[0])
    again = store_onnx(stored.files[MODEL_FILE], tmp_path / "again")
    assert again.digest == stored.digest


VIEWS = {
    "transposed": "{ t = Transpose (w)  y = MatMul (x, t) }",
    "backwards": """<int64[1] a = {-1}, int64[1] b = {-9}, int64[1] c = {0}>
        { t = Slice (w, a, b, c, a)  u = Reshape <allowzero = 0> (t, s)  y = MatMul (x, u) }""",
}


@pytest.mark.parametrize("text", VIEWS.values(), ids=VIEWS.keys())
def test_weights_that_folding_leaves_as_views_are_stored(
    text: str, save: Save, tmp_path: Path
) -> None:
    model = parser.parse_model(HEAD + text)
    weights = {"w": np.arange(24, dtype=np.float32).reshape(6, 4), "s": np.array([4, 6])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
    path = save(model)
    stored = store_onnx(path, tmp_path / "target")
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}
    wanted, found = (ran(each, feeds) for each in (path, stored.files[MODEL_FILE]))
    np.testing.assert_array_equal(found[0], wanted[0])


@pytest.mark.parametrize("make", [regressor, classifier])
def test_trees_are_masters(make: Callable[[], onnx.ModelProto], save: Save, tmp_path: Path) -> None:
    path = save(make())
    stored = store_onnx(path, tmp_path / "target")
    feeds = {"x": np.linspace(0, 1, 24, dtype=np.float32).reshape(6, 4)}
    for found, wanted in zip(ran(stored.files[MODEL_FILE], feeds), ran(path, feeds), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert stored.opset == 20
    assert [spec.datatype for spec in stored.outputs][-1] == "FP32"


def test_a_model_of_ml_alone_has_a_version_of_onnx(save: Save, tmp_path: Path) -> None:
    model = regressor()
    del model.opset_import[0]
    stored: StoredMaster = store_onnx(save(model), tmp_path / "target")
    assert stored.opset == 26
    ran(stored.files[MODEL_FILE], {"x": np.ones((1, 4), np.float32)})
    again = store_onnx(stored.files[MODEL_FILE], tmp_path / "again")
    assert again.digest == stored.digest


def ran(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime gives for a file."""
    outputs: list[np.ndarray] = onnxruntime.InferenceSession(str(path)).run(None, feeds)
    return outputs


def test_declared_shapes_of_computed_values_are_not_believed(save: Save, tmp_path: Path) -> None:
    model = parser.parse_model(
        HEAD
        + """ <int64[1] one = {1}, int64[1] last = {-1}, float[6, 4] h> {
            h = Slice (x, one, last)  n = Shape <end = 1> (h)  f = Cast <to = 1> (n)
            y = Mul (h, f) }"""
    )
    assert model.graph.value_info[0].type.tensor_type.shape.dim[0].dim_value == 6
    stored = store_onnx(save(model), tmp_path / "target")
    x = np.ones((7, 4), np.float32)
    module = graph_module_from_onnx(onnx.load(stored.files[MODEL_FILE]))
    for found in (ran(stored.files[MODEL_FILE], {"x": x})[0], module(torch.from_numpy(x))[0]):
        np.testing.assert_array_equal(found, np.full((5, 4), 5, np.float32))
    assert stored.outputs[0].shape == ("A", "B")
