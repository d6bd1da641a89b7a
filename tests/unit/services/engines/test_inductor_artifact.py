"""Buffers of a captured graph: padding, weights, and the seam where a GPU captures."""

import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from onnx import numpy_helper

from services.engines.artifact_index import WeightRef
from services.engines.artifact_weights import MasterWeights, WeightTable
from services.engines.cuda_graph import _Replay
from services.engines.inductor_artifact import StaticInput
from tests.conformance.tiny_model import save_master, tiny_model


def static(dtype: torch.dtype) -> StaticInput:
    return StaticInput(
        staging=torch.zeros(3, 4, dtype=dtype), device=torch.zeros(3, 4, dtype=dtype)
    )


def test_a_request_is_padded_into_the_buffer() -> None:
    buffer = static(torch.int64)
    buffer.fill(np.full((3, 4), 9), pad=1)
    buffer.fill(np.array([[5, 6]]), pad=1)
    assert buffer.device.tolist() == [[5, 6, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]


def test_a_bfloat16_buffer_takes_bfloat16_arrays() -> None:
    buffer = static(torch.bfloat16)
    buffer.fill(np.full((2, 2), 1.5, ml_dtypes.bfloat16), pad=0.0)
    assert buffer.device.dtype is torch.bfloat16
    assert buffer.device.sum() == 6


def test_weights_are_read_from_the_masters_external_data(tmp_path: Path) -> None:
    path = save_master(tiny_model(), tmp_path)
    assert (tmp_path / "weights.bin").stat().st_size > 1000
    weights = MasterWeights(path)
    assert set(weights) == {tensor.name for tensor in tiny_model().graph.initializer}
    wanted = next(t for t in tiny_model().graph.initializer if t.name == "w1")
    np.testing.assert_array_equal(weights.array("w1"), numpy_helper.to_array(wanted))


def test_a_weight_is_converted_and_shared(tmp_path: Path) -> None:
    table = WeightTable.open(tmp_path, save_master(tiny_model(), tmp_path), "cpu")
    ref = WeightRef(name="w1", datatype="BF16", is_in_master=True)
    tensor = table.tensor(ref)
    assert tensor.dtype is torch.bfloat16
    assert table.tensor(ref.model_copy()) is tensor


def test_a_captured_call_keeps_its_weights_alive() -> None:
    """A graph holds addresses; without the call nothing would hold what lies there."""

    class Graph:
        num_replays = 0

        def replay(self) -> None:
            self.num_replays += 1

    weight = torch.zeros(3)
    alive = weakref.ref(weight)
    outputs, graph = [torch.ones(1)], Graph()
    replay = _Replay(call=lambda w=weight: [w], graph=graph, outputs=outputs)  # type: ignore[arg-type, misc]
    del weight
    assert replay() is outputs
    assert graph.num_replays == 1
    assert alive() is not None
    del replay
    assert alive() is None
