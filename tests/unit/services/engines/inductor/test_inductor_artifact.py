"""Buffers of a captured graph: padding, weights, and the seam where a GPU captures."""

import weakref
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from onnx import numpy_helper

from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.recipe import Bucket, DimRange
from services.engines.artifacts.artifact_index import ArtifactIndex, BucketArtifact, WeightRef
from services.engines.artifacts.artifact_weights import MasterWeights, WeightTable
from services.engines.base import LoadSpec
from services.engines.device.device_probe import probe_device
from services.engines.inductor.cuda_graph import Replay
from services.engines.inductor.inductor_artifact import ArtifactProgram, BucketProgram, StaticInput
from tests.conformance.tiny_model import master_record, save_master, tiny_model
from tests.documents import small_key, small_manifest


def static(dtype: torch.dtype) -> StaticInput:
    return StaticInput(
        staging=torch.zeros(3, 4, dtype=dtype), device=torch.zeros(3, 4, dtype=dtype)
    )


def test_a_request_is_padded_into_the_buffer() -> None:
    buffer = static(torch.int64)
    buffer.fill(np.full((3, 4), 9), pad=1)
    buffer.fill(np.array([[5, 6]]), pad=1)
    buffer.send()
    assert buffer.device.tolist() == [[5, 6, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]


def mean_program(least: int) -> ArtifactProgram:
    """The mean over up to 8 values, for a bucket that begins at `least`; captured on the CPU."""
    buffer = StaticInput(staging=torch.zeros(1, 8), device=torch.zeros(1, 8))
    bucket = Bucket(dims={"length": DimRange(min=least, opt=8, max=8)})
    artifact = BucketArtifact(file="bucket0.bin", bucket=bucket, weights=())
    manifest = small_manifest(
        small_key(kind=EngineKind.INDUCTOR, buckets=(bucket,)),
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(1, "length")),),
        outputs=(TensorSpec(name="mean", datatype="FP32", shape=(1,)),),
    )
    spec = LoadSpec(
        manifest=manifest,
        master=master_record(),
        directory=Path(),
        master_path=Path(),
        device=probe_device(),
    )

    def call() -> Sequence[torch.Tensor]:
        buffer.send()
        return (buffer.device.mean(dim=1),)

    program = BucketProgram(inputs=(buffer,), call=call)
    return ArtifactProgram(spec, ArtifactIndex(artifacts=(artifact,)), (program,))


def test_a_request_below_its_bucket_is_refused_and_not_padded() -> None:
    """No proof ever saw it padded; a mean over 4 ones came out as 0.5."""
    program = mean_program(least=8)
    (mean,) = program.run([np.ones((1, 8), np.float32)], {"length": 8})
    np.testing.assert_array_equal(mean, [1.0])
    with pytest.raises(InvalidRequestError, match="length=4 lies outside every bucket.*8..8"):
        program.run([np.ones((1, 4), np.float32)], {"length": 4})


def test_a_request_within_its_bucket_is_padded_to_its_end() -> None:
    (mean,) = mean_program(least=1).run([np.ones((1, 4), np.float32)], {"length": 4})
    np.testing.assert_array_equal(mean, [0.5])


def test_a_bfloat16_buffer_takes_bfloat16_arrays() -> None:
    buffer = static(torch.bfloat16)
    buffer.fill(np.full((2, 2), 1.5, ml_dtypes.bfloat16), pad=0.0)
    buffer.send()
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
    replay = Replay(call=lambda w=weight: [w], graph=graph, outputs=outputs)  # type: ignore[arg-type, misc]
    del weight
    assert replay() is outputs
    assert graph.num_replays == 1
    assert alive() is not None
    del replay
    assert alive() is None
