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
from services.contracts.errors import UnsupportedGraphError

Save = Callable[..., Path]
STEP = """<ir_version: 10, opset_import: ["" : 20, "ai.onnx.preview.training" : 1]>
    g (float R, int64 T, float[N, 4] x, float[N, 4] gradient, float[N, 4] a, float[N, 4] b)
    => (float[N, 4] y, float[N, 4] c, float[N, 4] d)
    { y, c, d = ai.onnx.preview.training.Adam (R, T, x, gradient, a, b) }"""
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


def test_operators_of_training_are_refused_by_name(save: Save, tmp_path: Path) -> None:
    named = "ai.onnx.preview.training::Adam-1"
    with pytest.raises(UnsupportedGraphError, match=f"{named}.*'ai.onnx.preview.training' found"):
        stored(STEP, save, tmp_path / "target")
    with pytest.raises(UnsupportedGraphError, match=f"{named}.*: operators of training are not"):
        graph_module_from_onnx(parser.parse_model(STEP))


def test_attention_with_a_graph_of_its_own(save: Save, tmp_path: Path) -> None:
    master = stored(FLEX, save, tmp_path / "target")
    rng = np.random.default_rng(0)
    for batch, queries, keys in ((1, 3, 2), (2, 1, 5)):
        sizes = {"q": (batch, 2, queries, 4), "k": (batch, 2, keys, 4)}
        compare(master, {name: rng.random(size, np.float32) for name, size in sizes.items()})
