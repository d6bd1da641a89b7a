"""What failed is tried again: pauses that double, and one line for each fault."""

import itertools
import logging

import pytest

from services.controller.build.retries import Retries


def test_pauses_double_up_to_a_bound_and_a_fault_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = [0.0]
    retries = Retries(lambda: now_s[0], first_s=2, most_s=300)
    tried = []
    with caplog.at_level(logging.ERROR):
        # A pass comes every two seconds, for half an hour.
        for now_s[0] in range(0, 1800, 2):
            if retries.may_try("task"):
                tried.append(now_s[0])
                retries.note("task", "exceeded quota: jobs")
    assert tried[:6] == [0, 2, 6, 14, 30, 62]
    assert max(b - a for a, b in itertools.pairwise(tried)) == 300
    assert len(caplog.records) == 1
    retries.note("task", "another fault")
    assert len(caplog.records) == 2


def test_one_that_was_not_due_meanwhile_is_tried_at_once() -> None:
    retries = Retries(lambda: 0.0, first_s=2, most_s=300)
    retries.note("task", "no")
    assert not retries.may_try("task")
    assert retries.may_try("other")
    retries.keep(["other", "task"])
    assert not retries.may_try("task")
    retries.keep(["other"])
    assert retries.may_try("task")
