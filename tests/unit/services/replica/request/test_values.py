"""Values that a graph or a recipe limits: refused by place and value before an engine sees any."""

import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, bytes_from_array
from services.contracts.model.input_values import InputValues, IntegerSpan
from services.contracts.model.recipe import InputRecipe, Recipe
from services.pb import open_inference_v2_pb2 as pb
from services.replica.request.codec import call_from_request
from services.replica.request.signature import Signature
from tests.unit.services.replica.models import make_model

SHAPE = (2, 3)


def signature(
    datatype: str = "INT64", known: InputValues | None = None, **limits: int
) -> Signature:
    spec = TensorSpec(name="ids", datatype=datatype, shape=("batch", "sequence"))
    recipe = Recipe(inputs={"ids": InputRecipe(low=5, pad=5, **limits)})
    model = make_model((spec,), (), recipe)
    values = {"ids": known} if known else {}
    master = model.master.model_copy(update={"input_values": values})
    return Signature.from_model(model.model_copy(update={"master": master}))


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
    told = rf"input 'ids' for model 'm' at \[{row}, 2\]: expected values from 0 to 9, got {value}$"
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


ROWS = InputValues(allowed=(IntegerSpan(min=0, max=59),), tables=("word.weight",))
COLUMNS = InputValues(allowed=(IntegerSpan(min=0, max=9), IntegerSpan(max=99), IntegerSpan(min=-5)))


@pytest.mark.parametrize("value", [60, -1])
def test_what_the_graph_takes_is_checked_and_its_table_named(value: int) -> None:
    told = rf"\[0, 2\]: expected values from 0 to 59 \(rows of 'word.weight'\), got {value}$"
    with pytest.raises(InvalidRequestError, match=told):
        call_from_request(raw(ids(value=value)), signature(known=ROWS))
    call_from_request(raw(ids(value=59)), signature(known=ROWS))


def test_the_recipe_narrows_what_the_graph_takes() -> None:
    narrow = signature(known=ROWS, min=3, max=40)
    call_from_request(raw(ids(value=40)), narrow)
    with pytest.raises(InvalidRequestError, match="from 3 to 40 .*, got 41"):
        call_from_request(raw(ids(value=41)), narrow)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ([10, 5, 5], r"\[1, 0\]: expected values from 0 to 9, got 10"),
        ([5, 100, 5], r"\[1, 1\]: expected values from any to 99, got 100"),
        ([5, 5, -6], r"\[1, 2\]: expected values from -5 to any, got -6"),
    ],
)
def test_columns_have_bounds_of_their_own(row: list[int], told: str) -> None:
    columns = signature(known=COLUMNS)
    call_from_request(raw(np.array([[9, -(2**60), 2**60], [0, 99, -5]])), columns)
    with pytest.raises(InvalidRequestError, match=told):
        call_from_request(raw(np.array([[5, 5, 5], row])), columns)


def test_an_empty_input_holds_nothing_wrong() -> None:
    limits = signature(known=COLUMNS).limits["ids"]
    assert limits.first_outside(np.empty((0, 3), np.int64)) is None


def test_numbers_that_are_no_integers_are_never_looked_at() -> None:
    assert signature("FP32", known=ROWS).limits == {}
