"""Models of opset 6: stored in opset 7, so that every engine and the importer take them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from compiler_worker.master.opened import MODEL_FILE
from compiler_worker.master.stored import store_onnx
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from services.contracts.errors import UnsupportedGraphError
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

Save = Callable[..., Path]
X_NCW = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 9
ROW, CHANNELS = np.array([1, -2, 0, 4], np.float32), np.array([3, -1, 2], np.float32)
C11 = CHANNELS[:, None]
SQUARE = np.arange(9, dtype=np.float32).reshape(1, 3, 3) - 4
RIGHT = {
    "y = Sub <broadcast = 1> (x, row)": X_NCW - ROW,
    "y = Mul <broadcast = 1, axis = 1> (x, channels)": X_NCW * C11,
    "y = Div <broadcast = 1, axis = -2> (x, channels)": X_NCW / C11,
    "h = Abs (x) z = Add <broadcast = 1, axis = 1> (h, channels) y = Neg (z)": -abs(X_NCW) - C11,
    "g = Less <broadcast = 1, axis = 1> (x, channels) y = Cast <to = 1> (g)": X_NCW < C11,
    "y = PRelu (x, channels)": np.where(X_NCW >= 0, X_NCW, X_NCW * C11),
    "y = PRelu (x, row1)": np.where(X_NCW >= 0, X_NCW, X_NCW),
    "y = Dropout <is_test = 1> (x)": X_NCW,
    "z = Mul (x, x) y = Add (z, x)": X_NCW * X_NCW + X_NCW,
    "y = BatchNormalization <is_test = 1, epsilon = 0.0> (x, channels, channels, channels, two)": (
        (X_NCW - C11) / 2 * C11 + C11
    ),
}
CONSTANTS = {
    "row": ROW,
    "row1": np.ones(1, np.float32),
    "channels": CHANNELS,
    "two": np.full(3, 4, np.float32),
}


def of_opset_6(nodes: str, size: str = "W") -> onnx.ModelProto:
    """A model of these nodes with the constants that they name."""
    used = {name: value for name, value in CONSTANTS.items() if name in nodes.replace(",", " ")}
    text = f"g (float[N, 3, {size}] x) => (float[N, 3, {size}] y) {{ {nodes} }}"
    return model(text, opset=6, **used)


@pytest.mark.parametrize("nodes", RIGHT)
def test_what_opset_6_says_is_said_in_opset_7(nodes: str, save: Save, tmp_path: Path) -> None:
    stored = store_onnx(save(of_opset_6(nodes)), tmp_path / "target")
    master = onnx.load(stored.files[MODEL_FILE])
    assert stored.opset == 7
    (imported,) = graph_module_from_onnx(master)(torch.from_numpy(X_NCW))
    session = onnxruntime.InferenceSession(master.SerializeToString())
    for got in (imported.numpy(), session.run(None, {"x": X_NCW})[0]):
        np.testing.assert_allclose(got, RIGHT[nodes], rtol=1e-6)


def test_a_slope_per_channel_is_not_taken_for_one_per_column(save: Save, tmp_path: Path) -> None:
    stored = store_onnx(save(of_opset_6("y = PRelu (x, channels)", "3")), tmp_path / "target")
    module = graph_module_from_onnx(onnx.load(stored.files[MODEL_FILE]))
    (got,) = module(torch.from_numpy(SQUARE))
    np.testing.assert_array_equal(got.numpy(), np.where(SQUARE >= 0, SQUARE, SQUARE * C11))


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("y = Add (x, row)", "without broadcast"),
        ("y = Add <broadcast = 1, axis = 3> (x, row)", "leaves no room for 1 axes of 3"),
        ("y = Dropout (x)", "training mode"),
        ("y = AveragePool <kernel_shape = [2], pads = [1, 1]> (x)", "whether padding counts"),
    ],
)
def test_what_opset_6_leaves_open_is_refused(
    nodes: str, reason: str, save: Save, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedGraphError, match=reason):
        store_onnx(save(of_opset_6(nodes)), tmp_path / "target")
