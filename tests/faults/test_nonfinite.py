"""NaN and Inf of one caller reach no other row and no later run; its own answer is noted."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from compiler_worker.references.models import Model
from services.contracts.errors import EngineError
from services.contracts.kserve.tensors import Array
from services.contracts.model.batching import Batching
from services.contracts.model.recipe import Recipe
from tests.faults.judged import Altered, Answer, Subject, normal

# What the engines here make of infinite inputs is no number.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
LINEAR = "g (float[batch, 8] x) => (float[batch, 4] y) { y = MatMul (x, w) }"


@pytest.fixture
def linear(tmp_path: Path) -> Subject:
    return Subject.of(tmp_path, LINEAR, w=normal(8, 4))


class OneScale:
    """An engine that rounds its inputs by one scale of the whole batch, finely."""

    def __init__(self, engine: Model) -> None:
        self._engine = engine

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """Right where all inputs are numbers."""
        x = inputs["x"].astype(np.float64)
        step = np.abs(x).max() / 2**24 or 1
        return self._engine.run({"x": (np.round(x / step) * step).astype(np.float32)})


class KeepsPads:
    """An engine of eight rows that multiplies those behind a shorter batch by 0 and adds them."""

    def __init__(self, engine: Model) -> None:
        self._engine, self._rows = engine, np.zeros((8, 8), np.float32)

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """Right as long as what an earlier call left are numbers."""
        x = inputs["x"]
        self._rows[: len(x)] = x
        nothing = 0 * self._rows[len(x) :].sum()
        return self._engine.run({"x": x + nothing})


class ClearsNan:
    """Another engine, which numbers reach in place of NaN."""

    def __init__(self, engine: Model) -> None:
        self._engine = engine

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """What it answers then."""
        x = inputs["x"]
        return self._engine.run({"x": np.where(np.isnan(x), np.float32(0), x)})


class Breaks:
    """An engine that fails for good once it is given NaN."""

    def __init__(self, engine: Model) -> None:
        self._engine, self._is_broken = engine, False

    def run(self, inputs: Mapping[str, Array]) -> Answer:
        """Right before."""
        self._is_broken |= bool(np.isnan(inputs["x"]).any())
        if self._is_broken:
            raise EngineError("device-side assert")
        return self._engine.run(inputs)


def test_an_engine_that_keeps_nan_where_it_is_passes_without_a_note(linear: Subject) -> None:
    verdict = linear.judged(linear.engine)
    assert (verdict.reason, verdict.notes) == ("", ())


def test_nan_that_reaches_rows_of_other_callers_is_refused(linear: Subject) -> None:
    reason = linear.judged(OneScale(linear.engine)).reason
    assert reason.startswith("NaN in one row changes others: bucket batch8 at batch=2: output 'y'")


def test_rows_that_are_never_joined_may_share_a_scale(linear: Subject) -> None:
    alone = Recipe(batching=Batching(batch_dim=None))
    assert linear.judged(OneScale(linear.engine), alone).reason == ""


def test_nan_that_stays_in_a_buffer_is_refused(linear: Subject) -> None:
    reason = linear.judged(KeepsPads(linear.engine)).reason
    assert reason.startswith("after a run with NaN, output 'y', bucket batch8 at batch=1:")


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (OneScale, "Inf in one row changes others: bucket batch8 at batch=2: output 'y'"),
        (KeepsPads, "after a run with Inf, output 'y', bucket batch8 at batch=1:"),
    ],
)
def test_where_nan_is_cleared_inf_is_refused(
    linear: Subject, engine: Callable[[Model], Model], words: str
) -> None:
    assert linear.judged(ClearsNan(engine(linear.engine))).reason.startswith(words)


def test_an_engine_that_nan_breaks_is_refused(linear: Subject) -> None:
    reason = linear.judged(Breaks(linear.engine)).reason
    assert reason == "after a run with NaN the engine fails: device-side assert"


def test_numbers_in_place_of_nan_are_noted(linear: Subject) -> None:
    def hide(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["y"] = np.nan_to_num(answer["y"])

    verdict = linear.judged(Altered(linear.engine, hide))
    assert verdict.reason == ""
    words = "NaN in an input gives numbers in output 'y', and NaN in the model"
    assert verdict.notes == (words,)


def test_nan_in_place_of_numbers_is_noted(tmp_path: Path) -> None:
    graph = """g (float[batch, 8] x) => (float[batch, 4] y)
        { is_nan = IsNaN (x) filled = Where (is_nan, zero, x) y = MatMul (filled, w) }"""
    subject = Subject.of(tmp_path, graph, w=normal(8, 4), zero=np.float32(0))
    assert subject.judged(subject.engine).notes == ()

    def spread(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["y"] = answer["y"] + 0 * inputs["x"].sum(axis=1, keepdims=True)

    verdict = subject.judged(Altered(subject.engine, spread))
    assert verdict.reason == ""
    words = "NaN in an input gives NaN in output 'y', and numbers in the model"
    assert verdict.notes == (words,)


def test_a_model_whose_own_rows_share_nan_refuses_no_engine(tmp_path: Path) -> None:
    graph = """g (float[batch, 8] x) => (float[batch, 4] y)
        { largest = ReduceMax <keepdims = 1> (x) nothing = Mul (largest, zero)
          same = Add (x, nothing) y = MatMul (same, w) }"""
    subject = Subject.of(tmp_path, graph, w=normal(8, 4), zero=np.float32(0))
    verdict = subject.judged(subject.engine)
    assert verdict.reason == ""
    words = "NaN in one row changes others in the model itself: output 'y' differs by"
    assert verdict.notes[0].startswith(words)
    # Later runs are looked at all the same.
    reason = subject.judged(KeepsPads(subject.engine)).reason
    assert reason.startswith("after a run with NaN, output 'y', bucket batch8 at batch=1:")


def test_a_model_that_makes_an_index_of_nan_refuses_no_engine(tmp_path: Path) -> None:
    graph = """g (float[batch, 8] x) => (float[batch, 8, 4] y)
        { one = Sigmoid (x) many = Mul (one, ten) place = Cast <to = 7> (many)
          y = Gather (table, place) }"""
    subject = Subject.of(tmp_path, graph, table=normal(10, 4), ten=np.float32(9))
    verdict = subject.judged(subject.engine)
    assert verdict.reason == ""
    assert "NaN was not tried, as the model itself fails at it:" in verdict.notes[0]


def test_an_output_whose_shape_nan_decides_is_noted(tmp_path: Path) -> None:
    graph = """g (float[batch, 8] x) => (float[n] y, float[batch, 8] positive)
        { positive = Relu (x) where = NonZero (positive) places = Transpose (where)
          y = GatherND (x, places) }"""
    subject = Subject.of(tmp_path, graph)

    def number(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["y"] = answer["y"][~np.isnan(answer["y"])]

    alone = Recipe(batching=Batching(batch_dim=None))
    verdict = subject.judged(Altered(subject.engine, number), alone)
    assert verdict.reason == ""
    assert "NaN in an input changes the shape of output 'y'" in verdict.notes
