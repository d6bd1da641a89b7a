"""Requests to a replica of the tiny model as bytes, and its answers as arrays."""

from collections.abc import Mapping

import numpy as np

from services.contracts.kserve.tensors import (
    DATATYPE_FROM_NUMPY,
    Array,
    array_from_bytes,
    bytes_from_array,
)
from services.pb import open_inference_v2_pb2 as pb

MODEL = "tiny"


def request_of(inputs: Mapping[str, Array]) -> bytes:
    """A serialised request for all outputs."""
    request = pb.ModelInferRequest(model_name=MODEL)
    for name, array in inputs.items():
        datatype = DATATYPE_FROM_NUMPY[array.dtype]
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(bytes_from_array(array))
    return request.SerializeToString()


def outputs_of(response: bytes) -> dict[str, Array]:
    """The arrays of a serialised response by name."""
    answer = pb.ModelInferResponse.FromString(response)
    return {
        output.name: array_from_bytes(raw, output.datatype, output.shape)
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


def assert_answers(
    response: bytes, inputs: Mapping[str, Array], wanted: Mapping[str, Array], max_abs: float
) -> None:
    """A response is the reference's answer; masked positions of `hidden` are nobody's."""
    found = outputs_of(response)
    assert set(found) == set(wanted)
    is_valid = inputs["mask"].astype(bool)
    for name, array in found.items():
        where = is_valid if name == "hidden" else slice(None)
        np.testing.assert_allclose(array[where], wanted[name][where], rtol=0, atol=max_abs)
