"""What a captured graph could break: addresses, stale buffers, threads, memory."""

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
import torch

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.kserve.tensors import Array
from services.engines.inductor.inductor_artifact import StaticInput
from tests.conformance.test_engines import assert_equals_reference
from tests.conformance.tiny_model import draw_inputs, reference
from tests.conformance.workshop import BUCKETS, AnyEngine, Published

LARGEST = {name: dim.max for name, dim in BUCKETS[-1].dims.items()}
SMALL, LARGE = (3, 9), (7, 29)  # one shape of each bucket
_MIB = 2**20


@pytest.fixture
def loaded(graphed: Published, device: DeviceFacts) -> Iterator[AnyEngine]:
    engine = graphed.load(device)
    yield engine
    engine.close()


def churn() -> None:
    """Take and dirty whatever device memory is free to be handed out again."""
    gc.collect()
    torch.cuda.empty_cache()
    taken = [
        torch.full((size,), float("nan"), device="cuda")
        for size in (64, 512, 4096, 65536, _MIB, 16 * _MIB)
        for _ in range(32)
    ]
    torch.cuda.synchronize()
    del taken
    torch.cuda.empty_cache()


def test_weights_and_buffers_outlive_collection_and_churn(
    graphed: Published, loaded: AnyEngine, model: onnx.ModelProto
) -> None:
    for round_number in range(3):
        churn()
        for shape in (SMALL, LARGE):
            inputs = draw_inputs(*shape, seed=round_number)
            assert_equals_reference(graphed, model, inputs, loaded.run(inputs))


def test_outputs_are_the_callers_own(loaded: AnyEngine) -> None:
    first, second = loaded.run(draw_inputs(*LARGE)), loaded.run(draw_inputs(*LARGE))
    for name, array in first.items():
        assert array.flags.owndata
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert not np.shares_memory(array, second[name])
        array.fill(np.nan)
    again = loaded.run(draw_inputs(*LARGE))
    for name, array in again.items():
        np.testing.assert_array_equal(array, second[name])


def test_padding_is_right_at_every_size(
    graphed: Published, loaded: AnyEngine, model: onnx.ModelProto
) -> None:
    """Sizes in an order in which each one finds the remains of others in the buffers."""
    sizes = [
        (batch, sequence)
        for batch in range(1, LARGEST["batch"] + 1)
        for sequence in range(1, LARGEST["sequence"] + 1)
    ]
    for number in np.random.default_rng(0).permutation(len(sizes)):
        inputs = draw_inputs(*sizes[number], seed=int(number))
        assert_equals_reference(graphed, model, inputs, loaded.run(inputs))


def test_a_buffer_on_the_device_is_padded_with_its_value(device: DeviceFacts) -> None:
    buffer = StaticInput(
        staging=torch.zeros(3, 4, dtype=torch.int64, pin_memory=True),
        device=torch.zeros(3, 4, dtype=torch.int64, device="cuda"),
    )
    buffer.fill(np.full((3, 4), 9), pad=1)
    buffer.send()
    torch.cuda.synchronize()
    buffer.fill(np.array([[5, 6]]), pad=1)
    buffer.send()
    assert buffer.device.tolist() == [[5, 6, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]


def test_two_buckets_take_turns(
    graphed: Published, loaded: AnyEngine, model: onnx.ModelProto
) -> None:
    for number in range(20):
        inputs = draw_inputs(*(LARGE if number % 2 else SMALL), seed=number)
        assert_equals_reference(graphed, model, inputs, loaded.run(inputs))


def test_an_engine_lives_on_a_thread_of_its_own(
    graphed: Published, device: DeviceFacts, model: onnx.ModelProto
) -> None:
    with ThreadPoolExecutor(1) as thread:
        engine = thread.submit(graphed.load, device).result()
        for number, shape in enumerate((SMALL, LARGE, SMALL)):
            inputs = draw_inputs(*shape, seed=number)
            answer = thread.submit(engine.run, inputs).result()
            assert_equals_reference(graphed, model, inputs, answer)
        thread.submit(engine.close).result()


class Client:
    """Asks one engine for the same two answers until it is stopped."""

    def __init__(self, engine: AnyEngine, model: onnx.ModelProto) -> None:
        self._engine = engine
        requests = [draw_inputs(*shape, seed=5) for shape in (SMALL, LARGE)]
        self._asked = [(inputs, reference(model, inputs)) for inputs in requests]
        self.may_stop = threading.Event()
        self.num_answers = 0

    def ask(self) -> float:
        """Ask until told to stop; the largest distance to the reference of any answer."""
        largest = 0.0
        while not self.may_stop.is_set():
            inputs, wanted = self._asked[self.num_answers % 2]
            found = self._engine.run(inputs)["pooled"]
            largest = max(largest, _distance(found, wanted["pooled"]))
            self.num_answers += 1
        return largest


def _distance(found: Array, wanted: Array) -> float:
    distance = float(np.abs(found - wanted).max())
    # Never NaN: no comparison with it is true, and a wrong answer would pass.
    return distance if np.isfinite(distance) else float("inf")


def test_engines_are_loaded_and_closed_while_another_serves(
    graphed: Published, device: DeviceFacts, model: onnx.ModelProto
) -> None:
    """A capture on one thread beside replays on another: the live swap of a replica."""
    inputs = draw_inputs(*LARGE, seed=9)
    with ThreadPoolExecutor(1) as serving, ThreadPoolExecutor(1) as loading:
        first = serving.submit(graphed.load, device).result()
        client = Client(first, model)
        asking = serving.submit(client.ask)
        for _ in range(4):
            second = loading.submit(graphed.load, device).result()
            answer = loading.submit(second.run, inputs).result()
            assert_equals_reference(graphed, model, inputs, answer)
            loading.submit(second.close).result()
        last = loading.submit(graphed.load, device).result()
        client.may_stop.set()
        assert asking.result() <= graphed.case.max_abs
        assert client.num_answers > 0
        serving.submit(first.close).result()
        churn()
        answer = loading.submit(last.run, inputs).result()
        assert_equals_reference(graphed, model, inputs, answer)
        loading.submit(last.close).result()


def test_engines_that_come_and_go_leave_no_device_memory(
    graphed: Published, device: DeviceFacts
) -> None:
    def held_after_a_life() -> int:
        engine = graphed.load(device)
        engine.run(draw_inputs(*LARGE))
        engine.close()
        del engine
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    # The first life leaves what a process makes once: library handles and their workspaces.
    first, *others = [held_after_a_life() for _ in range(6)]
    assert others == [first] * 5
