"""Samples of a request, read off its bytes."""

import pytest

from services.contracts.batching import Batching
from services.contracts.manifest import MasterRecord, ModelVersion
from services.contracts.recipe import Recipe
from services.contracts.tensors import TensorSpec
from services.gateway.request_rows import num_rows
from services.pb import open_inference_v2_pb2 as pb

_UNPACKED_SHAPE = b"\x2a\x07\x0a\x01x\x18\x05\x18\x04"  # an input x whose shape is [5, 4]


def _model(*shape: str | int, batch_dim: str | None = "batch") -> ModelVersion:
    inputs = (
        TensorSpec(name="other", datatype="FP32", shape=("length", 2)),
        TensorSpec(name="x", datatype="FP32", shape=shape),
    )
    master = MasterRecord(
        digest="d" * 64, files={}, inputs=inputs, outputs=inputs, opset=23, num_parameters=0
    )
    return ModelVersion(
        name="m", version=1, master=master, recipe=Recipe(batching=Batching(batch_dim=batch_dim)),
        source="s", source_fingerprint="f", created_at="2025-01-01T00:00:00Z",
    )  # fmt: skip


def _request(*shape: int) -> bytes:
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"*" * 300, b"+"])
    request.inputs.add(name="other", datatype="FP32", shape=[7, 2])
    tensor = request.inputs.add(name="x", datatype="FP32", shape=shape)
    tensor.contents.fp32_contents.extend([1.0] * 300)
    return request.SerializeToString()


@pytest.mark.parametrize(
    ("model", "body", "num"),
    [
        (_model("batch", 4), _request(3, 4), 3),
        (_model(4, "batch"), _request(4, 300), 300),
        (_model("batch", 4), _UNPACKED_SHAPE, 5),
        (_model("batch", 4, batch_dim=None), _request(3, 4), 1),
        (_model(1, 4), _request(1, 4), 1),
        (_model("batch", 4), b"", 1),
        (_model(4, "batch"), _request(4), 1),
    ],
)
def test_rows_are_those_of_the_batch_dimension(model: ModelVersion, body: bytes, num: int) -> None:
    assert num_rows(body, model) == num
