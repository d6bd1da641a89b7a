"""numpy to torch and back, for every datatype of the protocol."""

import numpy as np
import pytest

from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE
from services.engines.torch_runtime.torch_arrays import (
    array_from_tensor,
    array_over,
    tensor_from_array,
    torch_dtype,
)


# torch has no strings.
@pytest.mark.parametrize("datatype", sorted(set(NUMPY_FROM_DATATYPE) - {"BYTES"}))
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
def test_values_and_type_survive_the_round_trip(datatype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(NUMPY_FROM_DATATYPE[datatype])
    tensor = tensor_from_array(array)
    assert tensor.dtype == torch_dtype(datatype)
    back = array_from_tensor(tensor)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("datatype", ["FP32", "BF16", "INT64"])
def test_a_read_only_array_is_shared_without_a_warning(datatype: str) -> None:
    array = np.arange(6).astype(NUMPY_FROM_DATATYPE[datatype])
    array.flags.writeable = False
    tensor = tensor_from_array(array)
    assert np.shares_memory(array_over(tensor), array)


@pytest.mark.parametrize("datatype", ["FP32", "BF16", "INT64"])
def test_an_empty_read_only_array_is_taken_without_a_warning(datatype: str) -> None:
    array = np.zeros((2, 0), NUMPY_FROM_DATATYPE[datatype])
    array.flags.writeable = False
    assert tensor_from_array(array).shape == (2, 0)


def test_results_own_their_memory() -> None:
    tensor = tensor_from_array(np.zeros(4, np.float32))
    result = array_from_tensor(tensor)
    tensor += 1
    assert result.flags.owndata
    assert not result.any()


def test_an_array_over_a_tensor_writes_through() -> None:
    tensor = tensor_from_array(np.zeros(4, NUMPY_FROM_DATATYPE["BF16"]))
    array_over(tensor)[1] = 2
    assert tensor.tolist() == [0, 2, 0, 0]
