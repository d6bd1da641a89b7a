"""A model of texts without an engine: BYTES in, a vector of three numbers for each text out."""

from typing import TYPE_CHECKING, Any

import numpy as np

from services.contracts.kserve.byte_strings import strings_from_bytes
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import array_from_bytes
from services.contracts.transport.frames import InferFrame
from services.pb import open_inference_v2_pb2 as pb
from tests.integration.gateway.conftest import model_version

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

OUTPUT = TensorSpec(name="sentence_embedding", datatype="FP32", shape=("batch", 3))


async def add_embedder(fleet: "Fleet", name: str, *inputs: TensorSpec) -> None:
    """Serve a model of that name with batches up to 8; its replica has its name."""
    model = model_version(name)
    master = model.master.model_copy(update={"inputs": inputs, "outputs": (OUTPUT,)})
    fleet.add_model(model.model_copy(update={"master": master}))
    replica = await fleet.add_replica(name, name)
    replica.answer = embed


async def embed(frame: InferFrame) -> bytes:
    """The length of a text, or the sum of its ids that the mask leaves; rows of the batch; 0.5."""
    request = pb.ModelInferRequest.FromString(bytes(frame.request))
    arrays: dict[str, Any] = {
        tensor.name: strings_from_bytes(raw, tensor.shape)
        if tensor.datatype == "BYTES"
        else array_from_bytes(raw, tensor.datatype, tensor.shape)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }
    if "text" in arrays:
        sizes = [len(text) for text in arrays["text"].ravel()]
    else:
        sizes = (arrays["input_ids"] * arrays["attention_mask"]).sum(axis=1).tolist()
    vectors = np.array([[size, len(sizes), 0.5] for size in sizes], np.float32)
    response = pb.ModelInferResponse(model_name=request.model_name, model_version="1")
    response.outputs.add(name=OUTPUT.name, datatype="FP32", shape=vectors.shape)
    response.raw_output_contents.append(vectors.tobytes())
    return response.SerializeToString()
