"""Random graphs are answered as ONNX Runtime or ONNX's evaluator answers them, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from tests.faults.graphs.cases import Case, grown
from tests.faults.graphs.evaluator import Slice
from tests.faults.graphs.judge import Stage, Verdict, judged
from tests.faults.graphs.run import run_parts
from tests.faults.graphs.shrink import shrunk, write
from tests.faults.graphs.worker import Part, judged_part

pytestmark = pytest.mark.faults


def test_a_seed_and_a_number_are_one_graph() -> None:
    one, other = grown(5, 3), grown(5, 3)
    assert one.model.SerializeToString() == other.model.SerializeToString()
    np.testing.assert_equal(one.feeds, other.feeds)
    assert grown(5, 4).ops != one.ops


def test_no_graph_is_wrong(tmp_path: Path) -> None:
    part = Part(seed=5, first=0, count=150, export_every=30, folder=str(tmp_path))
    run = run_parts(part, seconds=600)
    assert run.faults == []
    # Refusals are for what cannot be translated, and that is rare.
    assert run.reached["equal", "imported"] > 110
    assert run.reached["equal", "rewritten"] >= 3


@pytest.mark.slow
def test_no_graph_of_many_is_wrong(tmp_path: Path) -> None:
    part = Part(seed=6, first=0, count=2000, export_every=10, compile_every=400)
    run = run_parts(replace(part, folder=str(tmp_path)), seconds=800)
    assert run.faults == []
    assert run.reached["equal", "compiled"] >= 1


def _misjudged(case: Case) -> Case:
    """The case with another answer in place of the evaluator's."""
    name = case.outputs[-1]
    value = case.values[name]
    far = replace(value, arrays=tuple(array + array.dtype.type(64) for array in value.arrays))
    return replace(case, values=case.values | {name: far})


def test_an_answer_that_neither_gives_is_wrong() -> None:
    case = next(c for c in map(_grown, range(100)) if _is_plain(c))
    # With ONNX Runtime beside it, an evaluator that is wrong is only a note.
    assert judged(_misjudged(case), "imported").notes
    verdict = judged(_misjudged(case), "imported", has_runtime=False)
    assert (verdict.kind, verdict.stage) == ("wrong", "imported")


def _grown(number: int) -> Case:
    return grown(5, number)


def _is_plain(case: Case) -> bool:
    value = case.values[case.outputs[-1]]
    is_filled = all(array.size for array in value.arrays)
    verdict = judged(case, "imported")
    is_agreed = (verdict.kind, verdict.notes) == ("equal", ())
    return value.dtype == np.float32 and is_filled and is_agreed


def test_a_wrong_graph_is_made_small_and_written(tmp_path: Path) -> None:
    case = next(c for c in map(_grown, range(100)) if "Transpose" in c.ops and len(c.ops) > 40)
    small = shrunk(case, lambda c: "Transpose" in c.ops)
    assert small.ops == "Transpose"
    write(small, tmp_path, "small", "a line")
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx")
    arrays = np.load(tmp_path / "small.npz")
    feeds = {entry.name: arrays[f"{entry.name}.0"] for entry in session.get_inputs()}
    (found,) = session.run(None, feeds)
    np.testing.assert_array_equal(found, small.values[small.outputs[0]].arrays[0])
    assert (tmp_path / "wrong.txt").read_text() == "small: a line\n"
    onnx.checker.check_model(tmp_path / "small.onnx", full_check=True)


def test_a_slice_to_the_last_integer_is_drawn() -> None:
    assert "Slice" in grown(11, 8119).ops


def test_what_ended_a_process_is_made_small_without_onnx_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def wrong(case: Case, last: Stage, *, has_runtime: bool = True) -> Verdict:
        asked.append(has_runtime)
        return Verdict("wrong", last, "a reason")

    monkeypatch.setattr("tests.faults.graphs.worker.judged", wrong)
    judged_part(Part(seed=5, first=3, count=1, folder=str(tmp_path), has_runtime=False))
    assert len(asked) > 1
    assert not any(asked)


@pytest.mark.parametrize("start", [-9, -3, -1, 0, 1, 9])
@pytest.mark.parametrize("end", [-9, -3, -1, 0, 1, 9])
@pytest.mark.parametrize("step", [-2, -1, 1, 2])
def test_slices_of_the_evaluator_are_those_of_onnx_runtime(start: int, end: int, step: int) -> None:
    graph = "g (float[N] x, int64[1] a, int64[1] b, int64[1] s, int64[1] o) => (float[M] y)"
    text = f'<ir_version: 10, opset_import: ["" : 20]> {graph} {{ y = Slice(x, a, b, o, s) }}'
    model = parser.parse_model(text)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for size in (0, 2):
        feeds = {"x": np.arange(size, dtype=np.float32), "o": np.zeros(1, np.int64)}
        feeds |= {k: np.array([v]) for k, v in (("a", start), ("b", end), ("s", step))}
        (found,) = ReferenceEvaluator(model, new_ops=[Slice]).run(None, feeds)
        np.testing.assert_array_equal(found, session.run(None, feeds)[0])
