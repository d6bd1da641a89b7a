"""Requests as clients make them, for the tests of the codec."""

import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc._utils import _get_inference_request

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, bytes_from_array
from services.contracts.model.manifest import ModelVersion
from services.pb import open_inference_v2_pb2 as pb
from services.replica.request.signature import Signature
from tests.unit.services.replica.models import make_model, text_model

SIGNATURE = Signature.from_model(text_model())


def one_input_model(datatype: str, shape: tuple[int | str, ...]) -> ModelVersion:
    spec = TensorSpec(name="x", datatype=datatype, shape=shape)
    return make_model((spec,), (spec.model_copy(update={"name": "y"}),))


def triton_request(
    arrays: dict[str, np.ndarray],
    *,
    outputs: list[str] | None = None,
    request_id: str = "",
    version: str = "",
    **options: object,
) -> bytes:
    """The bytes that an unmodified tritonclient would send."""
    inputs = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), triton_name(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    wanted = None if outputs is None else [triton.InferRequestedOutput(n) for n in outputs]
    known = {
        "sequence_id": 0,
        "sequence_start": False,
        "sequence_end": False,
        "priority": 0,
        "timeout": None,
        "parameters": None,
    }
    request = _get_inference_request(
        "m", inputs, version, request_id, wanted, **{**known, **options}
    )
    return request.SerializeToString()


def triton_name(dtype: np.dtype) -> str:
    return {value: key for key, value in NUMPY_FROM_DATATYPE.items()}[dtype]


def text_request() -> pb.ModelInferRequest:
    """A good request of 2 rows of 3 tokens, to be spoilt."""
    request = pb.ModelInferRequest(model_name="m", id="r1")
    for name in ("ids", "mask"):
        request.inputs.add(name=name, datatype="INT64", shape=[2, 3])
        request.raw_input_contents.append(bytes_from_array(np.ones((2, 3), np.int64)))
    return request
