"""What is made of Serve's pickler when two threads use it."""

import sys

import pytest
from ray import cloudpickle

from services.controller.replica_fleet import _retried


def test_a_clash_with_another_thread_is_tried_again_and_nothing_else_is() -> None:
    module = sys.modules[__name__]
    calls: list[int] = []

    def submit() -> None:
        calls.append(1)
        if len(calls) < 3:
            # Ray's own words: another thread has taken the module away already.
            cloudpickle.unregister_pickle_by_value(module)

    _retried(submit)
    assert len(calls) == 3

    def wrong() -> None:
        calls.append(1)
        raise ValueError("no such application")

    with pytest.raises(ValueError, match="no such application"):
        _retried(wrong)
    assert len(calls) == 4
