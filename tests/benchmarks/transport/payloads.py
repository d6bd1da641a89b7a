"""The two requests that are measured, and the no-op model that answers them.

Legend: B = batch, T = tokens, C = channels, H = height, W = width.
    tok: ids_T int64 [256], 2 KB; a text model's request
    big: pixels_BCHW float32 [1, 3, 224, 224], 602 KB; an image model's request
    scores_BC: float32 [1, 10], the answer to both
"""

from collections.abc import Awaitable, Callable

import numpy as np

from services.pb.open_inference_v2_pb2 import ModelInferRequest, ModelInferResponse

Handler = Callable[[bytes | bytearray], Awaitable[bytes]]
SCORES_BC = np.linspace(0.0, 1.0, 10, dtype=np.float32).reshape(1, 10)
_DTYPES = {"INT64": np.dtype(np.int64), "FP32": np.dtype(np.float32)}


def request_of(payload: str) -> bytes:
    """The serialized request named `tok` or `big`."""
    array = np.arange(256) if payload == "tok" else np.zeros((1, 3, 224, 224), np.float32)
    request = ModelInferRequest(model_name="noop", model_version="1", id="7")
    datatype = "INT64" if payload == "tok" else "FP32"
    request.inputs.add(name="x", datatype=datatype, shape=array.shape)
    request.raw_input_contents.append(array.tobytes())
    return request.SerializeToString()


async def answer(data: bytes | bytearray) -> bytes:
    """Parses a request, looks at its tensor without a copy, answers ten scores."""
    request = ModelInferRequest.FromString(data)  # type: ignore[arg-type] # takes bytearray too
    tensor = request.inputs[0]
    array = np.frombuffer(request.raw_input_contents[0], _DTYPES[tensor.datatype])
    array.reshape(tuple(tensor.shape))
    reply = ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    reply.outputs.add(name="scores", datatype="FP32", shape=SCORES_BC.shape)
    reply.raw_output_contents.append(SCORES_BC.tobytes())
    return reply.SerializeToString()
