"""Values that a recipe limits: refused by input, row and value before an engine sees them."""

import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.recipe import InputRecipe, Recipe
from services.contracts.tensors import NUMPY_FROM_DATATYPE, TensorSpec, bytes_from_array
from services.pb import open_inference_v2_pb2 as pb
from services.replica.codec import call_from_request
from services.replica.signature import Signature

from .models import make_model

SHAPE = (2, 3)


def signature(datatype: str = "INT64", **limits: int) -> Signature:
    spec = TensorSpec(name="ids", datatype=datatype, shape=("batch", "sequence"))
    recipe = Recipe(inputs={"ids": InputRecipe(low=5, pad=5, **limits)})
    return Signature.from_model(make_model((spec,), (), recipe))


def raw(values: np.ndarray, datatype: str = "INT64") -> bytes:
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="ids", datatype=datatype, shape=values.shape)
    request.raw_input_contents.append(bytes_from_array(values))
    return request.SerializeToString()


def typed(values: np.ndarray) -> bytes:
    request = pb.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="ids", datatype="INT64", shape=values.shape)
    tensor.contents.int64_contents.extend(values.ravel().tolist())
    return request.SerializeToString()


def ids(*, row: int = 0, value: int = 5, datatype: str = "INT64") -> np.ndarray:
    array = np.full(SHAPE, 5, NUMPY_FROM_DATATYPE[datatype])
    array[row, -1] = value
    return array


@pytest.mark.parametrize("encode", [raw, typed])
@pytest.mark.parametrize(("row", "value"), [(0, 10), (1, 10), (0, -1), (1, 2**40)])
def test_a_value_outside_is_refused_with_input_row_found_and_allowed(
    encode: object, row: int, value: int
) -> None:
    told = rf"input 'ids' for model 'm', row {row}: expected values from 0 to 9, got {value}$"
    with pytest.raises(InvalidRequestError, match=told):
        call_from_request(encode(ids(row=row, value=value)), signature(min=0, max=9))  # type: ignore[operator]


@pytest.mark.parametrize("value", [0, 9])
def test_both_ends_are_allowed(value: int) -> None:
    call = call_from_request(raw(ids(value=value)), signature(min=0, max=9))
    assert call.inputs["ids"][0, -1] == value


def test_one_end_may_be_open() -> None:
    call_from_request(raw(ids(value=-(2**60))), signature(max=9))
    call_from_request(raw(ids(value=2**60)), signature(min=0))
    with pytest.raises(InvalidRequestError, match="from any to 9, got 10"):
        call_from_request(raw(ids(value=10)), signature(max=9))
    with pytest.raises(InvalidRequestError, match="from 0 to any, got -1"):
        call_from_request(raw(ids(value=-1)), signature(min=0))


def test_an_unsigned_input_is_compared_as_a_number() -> None:
    largest = 2**64 - 1
    with pytest.raises(InvalidRequestError, match=f"got {largest}"):
        call_from_request(
            raw(ids(value=largest, datatype="UINT64"), "UINT64"),
            signature("UINT64", min=-1, max=9),
        )


def test_without_limits_any_value_passes() -> None:
    assert call_from_request(raw(ids(value=2**60)), signature()).inputs["ids"].max() == 2**60
