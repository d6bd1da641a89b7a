"""What all engines share: one caller at a time, closing, and errors of the library."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from services.contracts.errors import (
    EngineError,
    InputRefusedError,
    InvalidRequestError,
    OverloadedError,
)
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.engines.guarded import GuardedEngine, library_errors
from services.engines.request_check import Sizes

SPECS = (TensorSpec(name="x", datatype="FP32", shape=("n",)),)


class Doubler(GuardedEngine):
    """Doubles its input, notes overlapping calls, and fails on demand."""

    def __init__(self) -> None:
        super().__init__(SPECS, (TensorSpec(name="y", datatype="FP32", shape=("n",)),), ())
        self.num_inside = 0
        self.most_inside = 0
        self.num_released = 0
        self.failure: Exception | None = None
        self.result_dtype = np.dtype(np.float32)
        self.result_shape: tuple[int, ...] = (-1,)

    def _compute(self, arrays: list[Array], sizes: Sizes) -> Sequence[Array]:
        self.num_inside += 1
        self.most_inside = max(self.most_inside, self.num_inside)
        # Gives another thread the chance to come in, if it could.
        threading.Event().wait(0.001)
        self.num_inside -= 1
        if self.failure:
            raise self.failure
        return [(arrays[0] * 2).astype(self.result_dtype).reshape(self.result_shape)]

    def _release(self) -> None:
        self.num_released += 1


def array(value: float) -> dict[str, Array]:
    return {"x": np.full(3, value, np.float32)}


def test_calls_are_serialised() -> None:
    engine = Doubler()
    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(lambda i: engine.run(array(i))["y"][0], range(40)))
    assert answers == [2.0 * i for i in range(40)]
    assert engine.most_inside == 1


def test_the_librarys_error_keeps_its_words_and_the_engine_lives_on() -> None:
    engine = Doubler()
    engine.failure = RuntimeError("device lost")
    with pytest.raises(EngineError, match="Doubler failed to run: RuntimeError: device lost"):
        engine.run(array(1))
    engine.failure = None
    assert engine.run(array(1))["y"][0] == 2


def test_our_own_errors_pass_unchanged() -> None:
    with pytest.raises(OverloadedError), library_errors("x"):
        raise OverloadedError("full")


def test_a_wrong_output_datatype_is_an_error() -> None:
    engine = Doubler()
    engine.result_dtype = np.dtype(np.float64)
    with pytest.raises(EngineError, match="output 'y' has datatype float64, .* promises FP32"):
        engine.run(array(1))


def test_a_wrong_output_rank_is_an_error() -> None:
    engine = Doubler()
    engine.result_shape = (1, 3)
    with pytest.raises(EngineError, match=r"'y' has .* shape \(1, 3\), .* promises FP32, \('n',\)"):
        engine.run(array(1))


def test_resources_are_released_once() -> None:
    engine = Doubler()
    engine.close()
    engine.close()
    assert engine.num_released == 1
    with pytest.raises(EngineError, match="Doubler is closed"):
        engine.run(array(1))


def test_wrong_inputs_never_reach_the_library() -> None:
    engine = Doubler()
    with pytest.raises(InvalidRequestError):
        engine.run({})
    assert engine.most_inside == 0


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("Unknown Category and zeros = 0.", "RuntimeError: Unknown Category and zeros = 0."),
        (
            "kernel, /home/cache/inductor/zq/x.main.cpp:31, index out of bounds",
            "RuntimeError: kernel, ...:31, index out of bounds",
        ),
    ],
)
def test_refused_values_are_the_clients_and_name_no_file_of_this_host(
    words: str, shown: str
) -> None:
    engine = Doubler()
    engine.failure = RuntimeError(words)
    with pytest.raises(InputRefusedError) as refused:
        engine.run({"x": np.zeros(2, np.float32)})
    assert str(refused.value).endswith(shown)
