"""The classification extension, asked for and read by an unmodified tritonclient."""

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc._utils import _get_inference_request

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE
from services.pb import open_inference_v2_pb2 as pb
from services.replica.request.classification import MAX_TEXTS, classified
from services.replica.request.codec import call_from_request
from services.replica.request.response import response_from_outputs
from services.replica.request.signature import Signature
from tests.unit.services.replica.codec_requests import one_input_model
from tests.unit.services.replica.models import make_model


def _answered(signature: Signature, values: np.ndarray, num_classes: int) -> triton.InferResult:
    tensor = triton.InferInput("x", list(values.shape), signature.inputs["x"].datatype)
    tensor.set_data_from_numpy(values)
    wanted = [triton.InferRequestedOutput("y", class_count=num_classes)]
    request = _get_inference_request("m", [tensor], "", "7", wanted, 0, False, False, 0, None, None)
    call = call_from_request(request.SerializeToString(), signature)
    answer = response_from_outputs(call, {"y": values}, signature)
    return triton.InferResult(pb.ModelInferResponse.FromString(answer))


@pytest.mark.parametrize(
    ("datatype", "rows", "wanted"),
    [
        (
            "FP32",
            [[0.5, 2, -1], [3, 3, 9]],
            [[b"2.000000:1", b"0.500000:0"], [b"9.000000:2", b"3.000000:0"]],
        ),
        ("FP16", [[np.nan, 1, 0.25]], [[b"1.000000:1", b"0.250000:2"]]),
        ("UINT8", [[0, 255, 7]], [[b"255:1", b"7:2"]]),
        (
            "INT64",
            [[-(2**62), 2**62 + 1, 2**62]],
            [[b"4611686018427387905:1", b"4611686018427387904:2"]],
        ),
    ],
)
def test_each_row_has_its_largest_values_first(
    datatype: str, rows: list[list[float]], wanted: list[list[bytes]]
) -> None:
    signature = Signature.from_model(one_input_model(datatype, ("batch", 3)))
    values = np.array(rows, NUMPY_FROM_DATATYPE[datatype])
    result = _answered(signature, values, 2)
    assert result.get_output("y").datatype == "BYTES"
    assert result.get_response().id == "7"
    assert result.as_numpy("y").tolist() == wanted


def test_more_classes_than_there_are_give_all_of_an_output_without_rows() -> None:
    signature = Signature.from_model(one_input_model("INT32", (2, 2)))
    result = _answered(signature, np.array([[1, 4], [3, 2]], np.int32), 9)
    assert result.as_numpy("y").tolist() == [b"4:1", b"3:2", b"2:3", b"1:0"]


@pytest.mark.parametrize(("num_values", "num_classes"), [(MAX_TEXTS + 1, 2**40), (10**6 + 1, 1)])
def test_what_would_hold_up_all_others_is_refused(num_values: int, num_classes: int) -> None:
    with pytest.raises(InvalidRequestError, match="ask for the output itself"):
        classified(np.zeros((1, num_values), np.float32), num_classes, has_rows=True)


def test_truth_values_have_no_classes() -> None:
    spec = TensorSpec(name="x", datatype="BOOL", shape=("batch", 3))
    model = make_model((spec,), (spec.model_copy(update={"name": "y"}),))
    with pytest.raises(InvalidRequestError, match="expected an output of numbers, got BOOL"):
        _answered(Signature.from_model(model), np.zeros((1, 3), np.bool_), 1)
