"""The judge itself: what is wrong must not pass, and a refusal keeps its parts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from compiler_worker.onnx_to_fx import converter_table
from tests.onnx_coverage.cases import SuiteCase
from tests.onnx_coverage.coverage_report import coverage_text
from tests.onnx_coverage.outcomes import mismatch, outcome
from tests.unit.compiler_worker.onnx_to_fx.graphs import model

RELU = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
X = np.array([-1.0, 2.0], np.float32)


def case(text: str, want: Any, *feeds: Any, name: str = "test_it") -> SuiteCase:
    """A case of one data set with the suite's usual tolerances."""
    data = ((list(feeds or [X]), [want]),)
    return SuiteCase(name, "node", model(text), data, rtol=1e-3, atol=1e-7)


def test_a_right_answer_passes() -> None:
    right = case(RELU, np.array([0.0, 2.0], np.float32))
    assert outcome(right).verdict == "pass"
    assert outcome(right, is_dynamic=True).verdict == "pass"
    assert outcome(right, is_dynamic=True, is_exported=True).verdict == "pass"


@pytest.mark.parametrize(
    "want",
    [
        np.array([0.0, 2.1], np.float32),
        np.array([0.0, 2.0], np.float64),
        np.array([[0.0, 2.0]], np.float32),
        np.array([0.0, np.nan], np.float32),
    ],
)
def test_a_wrong_answer_is_wrong(want: np.ndarray) -> None:
    judged = outcome(case(RELU, want))
    assert judged.verdict == "wrong"
    assert judged.reason


def test_integers_and_small_floats_are_compared_exactly() -> None:
    plain = case(RELU, X)
    assert mismatch(torch.tensor([100_001]), np.array([100_000]), plain)
    small = np.array([1.0, 2.0], ml_dtypes.float8_e4m3fn)
    assert mismatch(torch.tensor([1.0, 2.25]).to(torch.float8_e4m3fn), small, plain)
    assert not mismatch(torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn), small, plain)


def test_two_codes_of_one_number_are_equal() -> None:
    # In FLOAT4E2M1, 8 is the code of -0.
    zero = np.array([0.0], ml_dtypes.float4_e2m1fn)
    assert not mismatch(torch.tensor([8], dtype=torch.uint8), zero, case(RELU, X))


def test_sequences_are_compared_element_by_element() -> None:
    plain, one = case(RELU, X), torch.ones(1)
    wanted = [np.ones(1, np.float32), np.zeros(1, np.float32)]
    assert not mismatch([one, one - 1], wanted, plain)
    assert mismatch([one, one], wanted, plain)
    assert mismatch([one], wanted, plain)
    assert mismatch(one, None, plain)
    assert not mismatch(None, None, plain)


def test_a_fault_of_ours_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(op: object) -> None:
        raise ValueError("broken")

    row = converter_table.find("", "Relu", 14)
    assert row is not None
    monkeypatch.setattr(
        converter_table,
        "find",
        lambda *_: type(row)(versions=row.versions, carried=row.carried, convert=fail),
    )
    judged = outcome(case(RELU, X))
    assert (judged.verdict, judged.reason) == ("raised", "import: ValueError: broken")


def test_a_refusal_stands_in_the_report_with_its_parts() -> None:
    text = "g (string[2] x) => (string[2] y) { [here] y = StringConcat(x, x) }"
    refused = case(text, np.array(["a", "b"]), np.array(["a", "b"]), name="test_text")
    judged = {refused.name: outcome(refused)}
    assert judged[refused.name].verdict == "refused"
    written = coverage_text([refused], judged, judged)
    assert "### input 'x' has type STRING, not translated (1)" in written
    assert "| test_text | StringConcat | ai.onnx | 20 | here |" in written
    assert "| node | 1 | 0 | 0 | 1 |" in written
