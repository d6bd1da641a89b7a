"""Arrays of a call against the model's inputs."""

import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.engines.request_check import checked_arrays

SPECS = (
    TensorSpec(name="ids", datatype="INT64", shape=("batch", "sequence")),
    TensorSpec(name="scale", datatype="FP32", shape=()),
    TensorSpec(name="image", datatype="FP32", shape=("batch", 3)),
)


def good() -> dict[str, Array]:
    return {
        "image": np.zeros((2, 3), np.float32),
        "ids": np.zeros((2, 5), np.int64),
        "scale": np.float32(1).reshape(()),
    }


def test_arrays_come_in_spec_order_with_their_sizes() -> None:
    arrays, sizes = checked_arrays(SPECS, good())
    assert [array.shape for array in arrays] == [(2, 5), (), (2, 3)]
    assert sizes == {"batch": 2, "sequence": 5}


def test_contiguous_arrays_are_not_copied_and_strided_ones_are() -> None:
    inputs = good()
    inputs["ids"] = np.asfortranarray(np.arange(10).reshape(2, 5))
    arrays, _ = checked_arrays(SPECS, inputs)
    assert np.shares_memory(arrays[2], inputs["image"])
    assert arrays[0].flags.c_contiguous
    np.testing.assert_array_equal(arrays[0], inputs["ids"])


def test_only_what_may_be_empty_is_taken_empty() -> None:
    inputs = good() | {"ids": np.zeros((2, 0), np.int64)}
    arrays, sizes = checked_arrays(SPECS, inputs, {"sequence"})
    assert arrays[0].shape == (2, 0)
    assert sizes == {"batch": 2, "sequence": 0}
    with pytest.raises(InvalidRequestError, match=r"dimension 1 \('sequence'\) is 0"):
        checked_arrays(SPECS, inputs, {"batch"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": None}, "input 'ids' is missing: expected ids, scale, image, got image, scale"),
        ({"more": np.zeros(1)}, "input 'more' is unknown"),
        ({"image": np.zeros((2, 3))}, "input 'image': expected datatype FP32, got FP64"),
        ({"image": np.zeros((2, 4), np.float32)}, r"expected \[-1, 3\], got \[2, 4\]"),
        ({"ids": np.zeros(5, np.int64)}, r"expected \[-1, -1\], got \[5\]"),
        ({"image": np.zeros((4, 3), np.float32)}, "dimension 'batch' is 4, other inputs have 2"),
        ({"ids": np.zeros((2, 0), np.int64)}, r"dimension 1 \('sequence'\) is 0"),
    ],
)
def test_each_fault_is_named(change: dict[str, Array | None], message: str) -> None:
    inputs = {name: array for name, array in {**good(), **change}.items() if array is not None}
    with pytest.raises(InvalidRequestError, match=message):
        checked_arrays(SPECS, inputs)
