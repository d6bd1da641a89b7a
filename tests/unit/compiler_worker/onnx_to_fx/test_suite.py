"""ONNX's own backend tests: every case is right or refused by name; none is wrong."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.onnx_coverage.cases import SuiteCase, all_cases
from tests.onnx_coverage.coverage_report import COVERAGE_FILE, coverage_text
from tests.onnx_coverage.outcomes import Outcome, outcome

ROOT = Path(__file__).parents[4]
# What onnx 1.23 brings; another version that brings less would weaken every test here.
CASES = {
    "node": 1884,
    "simple": 23,
    "pytorch-converted": 82,
    "pytorch-operator": 35,
    "light": 9,
}
# Raise them with every op that is added.
PASSED = {
    "node": 1806,
    "simple": 15,
    "pytorch-converted": 82,
    "pytorch-operator": 35,
    "light": 9,
}
PASSED_DYNAMIC = 1915
EXPORTED_OPS = 156

# Right with static shapes; with dynamic ones torch raises while running.
LOUD_WHEN_DYNAMIC = {
    # Reducing an axis that turns out to be empty.
    "test_reduce_max_empty_set",
    "test_reduce_max_empty_set_bool",
    "test_reduce_min_empty_set",
    # A result that turns out to be wanted one row longer than the convolution's.
    "test_convtranspose_output_shape",
}


@pytest.fixture(scope="module")
def cases() -> list[SuiteCase]:
    """Every case of the suite."""
    return all_cases()


@pytest.fixture(scope="module")
def outcomes(cases: list[SuiteCase]) -> dict[str, Outcome]:
    """The whole suite with the shapes it declares."""
    return {case.name: outcome(case) for case in cases}


@pytest.fixture(scope="module")
def dynamic_outcomes(cases: list[SuiteCase]) -> dict[str, Outcome]:
    """The whole suite with every axis dynamic."""
    return {case.name: outcome(case, is_dynamic=True) for case in cases}


def named(outcomes: dict[str, Outcome], verdict: str) -> dict[str, str]:
    """Case names of one verdict, with the reason."""
    return {name: o.reason for name, o in outcomes.items() if o.verdict == verdict}


def test_the_suite_is_whole(cases: list[SuiteCase], outcomes: dict[str, Outcome]) -> None:
    assert Counter(case.kind for case in cases) == CASES
    assert len(outcomes) == sum(CASES.values())


def test_no_answer_is_wrong(outcomes: dict[str, Outcome]) -> None:
    assert not named(outcomes, "wrong")
    assert not named(outcomes, "raised")


def test_breadth_does_not_shrink(cases: list[SuiteCase], outcomes: dict[str, Outcome]) -> None:
    counts = Counter(case.kind for case in cases if outcomes[case.name].verdict == "pass")
    assert {kind: counts[kind] for kind in CASES if counts[kind] < PASSED[kind]} == {}


@pytest.mark.slow
def test_no_answer_is_wrong_when_every_axis_is_dynamic(
    dynamic_outcomes: dict[str, Outcome],
) -> None:
    assert not named(dynamic_outcomes, "wrong")
    assert set(named(dynamic_outcomes, "raised")) == LOUD_WHEN_DYNAMIC
    assert len(named(dynamic_outcomes, "pass")) >= PASSED_DYNAMIC


@pytest.mark.slow
def test_one_case_of_every_op_exports(
    cases: list[SuiteCase], dynamic_outcomes: dict[str, Outcome]
) -> None:
    first: dict[str, SuiteCase] = {}
    for case in cases:
        is_plain = case.kind == "node" and len(case.model.graph.node) == 1
        if is_plain and dynamic_outcomes[case.name].verdict == "pass" and takes_tensors(case):
            first.setdefault(case.model.graph.node[0].op_type, case)
    assert len(first) >= EXPORTED_OPS
    exported = {
        op_type: outcome(case, is_dynamic=True, is_exported=True).reason
        for op_type, case in first.items()
    }
    assert {op_type: reason for op_type, reason in exported.items() if reason} == {}


def takes_tensors(case: SuiteCase) -> bool:
    """Whether every input is a tensor that holds something."""
    feeds, _ = case.data[0]
    return all(isinstance(feed, np.ndarray) and feed.size for feed in feeds)


def test_refusals_name_the_op_or_the_value(outcomes: dict[str, Outcome]) -> None:
    for name, reason in named(outcomes, "refused").items():
        assert re.match(r"(\S+-\d+( at node '.*')?|graph): .+", reason), name


def test_what_is_committed_is_what_the_suite_gives(
    cases: list[SuiteCase], outcomes: dict[str, Outcome], dynamic_outcomes: dict[str, Outcome]
) -> None:
    text = coverage_text(cases, outcomes, dynamic_outcomes)
    stale = f"{COVERAGE_FILE} is stale: run python -m tests.onnx_coverage"
    assert (ROOT / COVERAGE_FILE).read_text() == text, stale
