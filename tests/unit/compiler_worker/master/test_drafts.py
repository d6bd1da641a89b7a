"""Ops of ONNX's drafts (ai.onnx.preview): stored, imported, and what ONNX's own code computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import parser
from onnx.reference import ReferenceEvaluator

from compiler_worker.master.opened import MODEL_FILE
from compiler_worker.master.stored import store_onnx
from compiler_worker.onnx_to_fx import graph_module_from_onnx

Save = Callable[..., Path]
TRAINING = "ai.onnx.preview.training"
STEP = """<ir_version: 10, opset_import: [IMPORTS]>
    g (float R, int64 T, float[N, 4] x, float[N, 4] gradient, float[N, 4] a, float[N, 4] b)
    => (float[N, 4] y, float[N, 4] c, float[N, 4] d) { NODES }"""
# The domains that a model imports, and its nodes.
STEPS = {
    "Adam": (
        f'"{TRAINING}" : 1',
        f"""y, c, d = {TRAINING}.Adam
        <alpha = 0.9, beta = 0.99, norm_coefficient = 0.1> (R, T, x, gradient, a, b)""",
    ),
    "Momentum": (
        f'"" : 20, "{TRAINING}" : 1',
        f"""y, c = {TRAINING}.Momentum <alpha = 0.9, beta = 0.5, norm_coefficient = 0.1,
        mode = "nesterov"> (R, T, x, gradient, a)  d = Identity (b)""",
    ),
    "Adagrad": (
        f'"" : 20, "{TRAINING}" : 1',
        f"""y, c = {TRAINING}.Adagrad
        <norm_coefficient = 0.1, decay_factor = 0.2> (R, T, x, gradient, a)  d = Identity (b)""",
    ),
}
FLEX = """<ir_version: 13, opset_import: ["" : 26, "ai.onnx.preview" : 1]>
    g (float[B, 2, N, 4] q, float[B, 2, K, 4] k) => (float[B, 2, N, 4] y) {
    h = ai.onnx.preview.FlexAttention <score_mod = s (float[A, B, C, D] e) =>
    (float[A, B, C, D] r) { r = Tanh (e) }> (q, k, k) y = Relu (h) }"""


def stored(text: str, save: Save, folder: Path) -> onnx.ModelProto:
    """The master of a model in ONNX's text form."""
    return onnx.load(store_onnx(save(parser.parse_model(text)), folder).files[MODEL_FILE])


def compare(master: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Hold the import to ONNX's own implementation."""
    wanted = ReferenceEvaluator(master).run(None, feeds)
    found = graph_module_from_onnx(master)(*map(torch.from_numpy, feeds.values()))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("step_of", STEPS)
def test_a_step_of_an_optimizer(step_of: str, save: Save, tmp_path: Path) -> None:
    imports, nodes = STEPS[step_of]
    text = STEP.replace("IMPORTS", imports).replace("NODES", nodes)
    master = stored(text, save, tmp_path / "target")
    rng = np.random.default_rng(0)
    for step, rows in ((0, 1), (3, 5)):
        given = {name: rng.random((rows, 4), np.float32) for name in ("x", "gradient", "a", "b")}
        compare(master, {"R": np.array(0.1, np.float32), "T": np.array(step), **given})


def test_attention_with_a_graph_of_its_own(save: Save, tmp_path: Path) -> None:
    master = stored(FLEX, save, tmp_path / "target")
    rng = np.random.default_rng(0)
    for batch, queries, keys in ((1, 3, 2), (2, 1, 5)):
        sizes = {"q": (batch, 2, queries, 4), "k": (batch, 2, keys, 4)}
        compare(master, {name: rng.random(size, np.float32) for name, size in sizes.items()})
