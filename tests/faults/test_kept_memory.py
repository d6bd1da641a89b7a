"""Engines that keep or share memory: what one call leaves shows in the answer to another."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from compiler_worker.references.models import Model
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, Recipe
from tests.faults.judged import Answer, Subject, normal

LINEAR = "g (float[batch, 8] x) => (float[batch, 4] y) { y = MatMul (x, w) }"


class Stale:
    """An engine that keeps the rows of an earlier, longer call behind those of a shorter one."""

    def __init__(self, engine: Model) -> None:
        self._engine, self._kept = engine, np.zeros((0, 8), dtype=np.float32)

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """Each answer is of the batch's mean, over rows that an earlier call left there."""
        x = inputs["x"]
        rows = np.concatenate([x, self._kept[len(x) :]])
        self._kept = rows
        answer = self._engine.run({"x": rows})
        answer["y"] = answer["y"][: len(x)]
        return answer


MEAN = """g (float[batch, 8] x) => (float[batch, 4] y)
    { mean = ReduceMean <keepdims = 1> (x, axis) rest = Sub (x, mean) y = MatMul (rest, w) }"""


def test_what_an_earlier_call_left_in_a_buffer(tmp_path: Path) -> None:
    subject = Subject.of(tmp_path, MEAN, w=normal(8, 4), axis=np.array([0]))
    assert subject.judged(subject.engine).reason == ""
    assert "rel_l2" in subject.judged(Stale(subject.engine)).reason


class Replays:
    """An engine whose graph of calls is recorded once for each shape, and never fed again."""

    def __init__(self, engine: Model) -> None:
        self._engine = engine
        self._recorded: dict[tuple[int, ...], Answer] = {}

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """What the first call of this shape was answered."""
        shape = inputs["x"].shape
        if shape not in self._recorded:
            self._recorded[shape] = self._engine.run(inputs)
        return self._recorded[shape]


class Remembers:
    """An engine that keeps one answer, or all, and knows them by the first row of the inputs."""

    def __init__(self, engine: Model, *, is_one: bool) -> None:
        self._engine, self._is_one = engine, is_one
        self._known = dict[tuple[tuple[int, ...], bytes], Answer]()

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """What is known of such a first row, in a batch of this size."""
        x = inputs["x"]
        key = x.shape, x[:1].tobytes()
        if key not in self._known:
            if self._is_one:
                self._known.clear()
            self._known[key] = dict(self._engine.run(inputs))
        return {name: array.copy() for name, array in self._known[key].items()}


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.INT8])
@pytest.mark.parametrize("is_one", [True, False])
def test_answers_that_are_known_by_a_part_of_the_inputs(
    is_one: bool, precision: Precision, tmp_path: Path
) -> None:
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    assert subject.judged(subject.engine, precision=precision).reason == ""
    wrong = subject.judged(Remembers(subject.engine, is_one=is_one), precision=precision)
    assert "bucket batch8 at batch=4: " in wrong.reason


class Rewrites:
    """An engine that writes to its inputs, before it computes or after."""

    def __init__(self, engine: Model, *, is_before: bool) -> None:
        self._engine, self._is_before = engine, is_before

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """The answer to absolute values, or to what was asked."""
        x = inputs["x"]
        if self._is_before:
            return self._engine.run({"x": np.abs(x, out=x)})
        answer = self._engine.run(inputs)
        x[:1] += 1
        return answer


@pytest.mark.parametrize("is_before", [True, False])
def test_what_is_written_to_the_inputs(is_before: bool, tmp_path: Path) -> None:
    """The reference computed the very inputs that such an engine left, and agreed."""
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    verdict = subject.judged(Rewrites(subject.engine, is_before=is_before))
    assert "it changes its input 'x'" in verdict.reason


class Shares:
    """An engine whose answers lie in memory that its next call, or whoever asks, writes to."""

    def __init__(self, engine: Model) -> None:
        self._engine, self._memory = engine, np.zeros((8, 4), dtype=np.float32)

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """Views of one buffer."""
        rows = self._memory[: len(inputs["x"])]
        rows[...] = self._engine.run(inputs)["y"]
        return {"y": rows}


def test_answers_in_memory_that_the_next_call_writes_to(tmp_path: Path) -> None:
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    verdict = subject.judged(Shares(subject.engine))
    assert "an output array changed after later runs" in verdict.reason


class Reuses:
    """An engine whose answers lie in buffers of its own: some in turn, or one of each shape."""

    def __init__(self, engine: Model, num_buffers: int | None) -> None:
        self._engine, self._num_buffers = engine, num_buffers
        self._calls, self._buffers = count(), dict[int, Array]()

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """Views of a buffer that was written to before."""
        rows, number = len(inputs["x"]), next(self._calls)
        place = number % self._num_buffers if self._num_buffers else rows
        buffer = self._buffers.setdefault(place, np.zeros((8, 4), dtype=np.float32))
        buffer[:rows] = self._engine.run(inputs)["y"]
        return {"y": buffer[:rows]}


@pytest.mark.parametrize("num_buffers", [3, None])
def test_answers_in_memory_that_a_later_call_writes_to(
    num_buffers: int | None, tmp_path: Path
) -> None:
    """As a graph of calls does that was captured once for each shape."""
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    bucket = Bucket(dims={"batch": DimRange(min=1, opt=8, max=8)})
    assert subject.judged(subject.engine, buckets=(bucket,)).reason == ""
    verdict = subject.judged(Reuses(subject.engine, num_buffers), buckets=(bucket,))
    assert "an output array changed after later runs" in verdict.reason


class Echoes:
    """An engine that gives back the memory of its inputs."""

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """The inputs themselves."""
        return {"y": inputs["x"]}


def test_answers_in_the_memory_of_the_request(tmp_path: Path) -> None:
    graph = "g (float[batch, 8] x) => (float[batch, 8] y) { y = Identity (x) }"
    subject = Subject.of(tmp_path, graph)
    assert subject.judged(subject.engine).reason == ""
    assert "rel_l2" in subject.judged(Echoes()).reason


@pytest.mark.parametrize("sizes", [(1, 4, 8), (8, 8, 8), (1, 1, 1)])
def test_the_inputs_of_an_earlier_call(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    least, usual, most = sizes
    bucket = Bucket(dims={"batch": DimRange(min=least, opt=usual, max=most)})
    # Of a range nothing is drawn eight times as large: no sample has the shape of another.
    recipe = Recipe(inputs={"x": InputRecipe(low=-1, high=1)})
    assert subject.judged(subject.engine, recipe, buckets=(bucket,)).reason == ""
    verdict = subject.judged(Replays(subject.engine), recipe, buckets=(bucket,))
    assert "rel_l2" in verdict.reason
