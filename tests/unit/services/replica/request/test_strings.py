"""BYTES through the codec: what tritonclient sends and reads, and what strangers send."""

import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from services.contracts.errors import EngineError, InvalidRequestError
from services.contracts.kserve.byte_strings import MAX_STRINGS
from services.contracts.kserve.tensors import Array, bytes_from_array
from services.pb import open_inference_v2_pb2 as pb
from services.replica.request.codec import call_from_request
from services.replica.request.infer_call import InferCall
from services.replica.request.response import response_from_outputs
from services.replica.request.signature import Signature
from tests.unit.services.replica.codec_requests import one_input_model, triton_request

SIGNATURE = Signature.from_model(one_input_model("BYTES", ("batch", 2)))
rows = st.lists(st.lists(st.text(max_size=6), min_size=2, max_size=2), min_size=1, max_size=5)


def answered(array: Array) -> triton.InferResult:
    """What a client reads of an output."""
    call = InferCall(inputs={}, sizes={}, outputs=("y",))
    payload = response_from_outputs(call, {"y": array}, SIGNATURE)
    return triton.InferResult(service_pb2.ModelInferResponse.FromString(payload))


def raw_request(data: bytes, num_rows: int = 1) -> bytes:
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[data])
    request.inputs.add(name="x", datatype="BYTES", shape=[num_rows, 2])
    return request.SerializeToString()


@given(rows)
def test_strings_go_in_raw_and_typed_and_come_out_raw(words: list[list[str]]) -> None:
    array = np.array(words, dtype=object)
    typed = pb.ModelInferRequest(model_name="m")
    tensor = typed.inputs.add(name="x", datatype="BYTES", shape=array.shape)
    tensor.contents.bytes_contents.extend(word.encode() for row in words for word in row)
    for payload in (triton_request({"x": array}), typed.SerializeToString()):
        call = call_from_request(payload, SIGNATURE)
        assert call.inputs["x"].tolist() == words
        assert call.sizes == {"batch": len(words)}
    encoded = [[word.encode() for word in row] for row in words]
    assert answered(array).as_numpy("y").tolist() == encoded


@pytest.mark.parametrize("num_rows", [1, 3000])
def test_an_output_of_any_size_holds_texts_and_no_places_of_memory(num_rows: int) -> None:
    """What numpy itself copies of an array of objects are pointers."""
    answer = answered(np.full((num_rows, 2), "ab", dtype=object)).get_response()
    assert answer.outputs[0].datatype == "BYTES"
    assert answer.raw_output_contents == [b"\x02\0\0\0ab" * 2 * num_rows]


@given(data=st.binary(max_size=40))
def test_strangers_bytes_are_strings_or_refused(data: bytes) -> None:
    try:
        call = call_from_request(raw_request(data), SIGNATURE)
    except InvalidRequestError:
        return
    assert bytes_from_array(call.inputs["x"]) == data


def test_too_many_strings_are_refused_by_the_shape() -> None:
    with pytest.raises(InvalidRequestError, match=r"input 'x' for model 'm': .* at most 1000000"):
        call_from_request(raw_request(b"", MAX_STRINGS), SIGNATURE)


@pytest.mark.parametrize(
    ("elements", "words"),
    [
        ([b"a"], r"expected 2 elements for shape \[1, 2\], got 1"),
        ([b"a", b"\xff"], "input 'x' for model 'm': element 1: expected UTF-8, .* 0xff at 0"),
    ],
)
def test_wrong_typed_contents_are_refused(elements: list[bytes], words: str) -> None:
    request = pb.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="x", datatype="BYTES", shape=[1, 2])
    tensor.contents.bytes_contents.extend(elements)
    with pytest.raises(InvalidRequestError, match=words):
        call_from_request(request.SerializeToString(), SIGNATURE)


def test_text_of_a_fixed_width_from_an_engine_is_not_sent() -> None:
    with pytest.raises(EngineError, match="expected datatype BYTES for output 'y', got <U1"):
        answered(np.array([["a", "b"]]))


def test_what_an_engine_gives_as_strings_and_are_none_is_its_fault() -> None:
    for wrong in ("half \ud800", 7):
        with pytest.raises(EngineError, match="an output of the engine: expected strings"):
            answered(np.array([["a", wrong]], dtype=object))
