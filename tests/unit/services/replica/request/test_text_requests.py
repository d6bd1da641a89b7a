"""Requests of text: their shapes, what they may not come with, and what they become."""

from collections.abc import Sequence

import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensors import Array, bytes_from_array
from services.contracts.model.text_recipe import TextRecipe
from services.pb import open_inference_v2_pb2 as pb
from services.replica.request.codec import (
    MAX_TEXT_BYTES,
    call_from_request,
    call_from_tensors,
)
from services.replica.request.infer_call import InferCall
from services.replica.request.signature import Signature
from tests.unit.services.replica.models import text_model
from tests.unit.services.replica.text_models import token_model

SINGLE, PAIRS = (
    Signature.from_model(token_model(TextRecipe(tokenizer="t", pairs=pairs)))
    for pairs in (False, True)
)
NONE = Signature.from_model(text_model())


def call_of(signature: Signature, shape: Sequence[int], *others: str) -> InferCall:
    request = pb.ModelInferRequest(model_name="m")
    text = np.full(tuple(shape), "a", np.object_)
    for name, array in {"text": text, **dict.fromkeys(others, np.ones((1, 2), np.int64))}.items():
        datatype = "BYTES" if array.dtype == np.object_ else "INT64"
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(bytes_from_array(array))
    return call_from_request(request.SerializeToString(), signature)


@pytest.mark.parametrize(
    ("signature", "shape"), [(SINGLE, (3,)), (SINGLE, (3, 1)), (PAIRS, (3, 2))]
)
def test_rows_are_known_before_the_length(signature: Signature, shape: tuple[int, ...]) -> None:
    call = call_of(signature, shape)
    assert call.sizes == {"batch": 3}
    assert call.inputs["text"].shape == shape
    assert call.outputs == ("embedding",)


@pytest.mark.parametrize(
    ("signature", "shape", "others", "words"),
    [
        (SINGLE, (3, 2), (), r"Expected \[-1, 1\], got \[3, 2\]"),
        (PAIRS, (3,), (), r"Expected \[-1, 2\], got \[3\]"),
        (SINGLE, (5,), (), "batch-size must be <= 4"),
        (SINGLE, (1,), ("input_ids",), r"'input_ids'.*\], or 'text' alone"),
        (NONE, (1,), (), "smelt models add m MODEL.onnx --tokenizer tokenizer.json"),
    ],
)
def test_what_is_refused(
    signature: Signature, shape: tuple[int, ...], others: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        call_of(signature, shape, *others)


def test_texts_beyond_any_use_are_refused_before_they_are_decoded() -> None:
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="text", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(b"\0" * (MAX_TEXT_BYTES + 1))
    with pytest.raises(InvalidRequestError, match="16777217 bytes, at most 16777216 are accepted"):
        call_from_request(request.SerializeToString(), SINGLE)


def test_what_texts_become_is_checked_as_if_a_client_had_sent_it() -> None:
    call = call_of(SINGLE, (1,))
    tensors: dict[str, Array] = {name: np.ones((1, 5), np.int64) for name in SINGLE.inputs}
    found = call_from_tensors(call, tensors, SINGLE)
    assert (found.inputs, found.sizes) == (tensors, {"batch": 1, "sequence": 5})
    assert found.num_tokens == 5
    with pytest.raises(InvalidRequestError, match="dimension 'sequence' is 9, allowed is 1..8"):
        call_from_tensors(call, {n: np.ones((1, 9), np.int64) for n in tensors}, SINGLE)
