"""What is made of Serve's pickler when two threads use it, and of what it says of faults."""

import sys

import pytest
from ray import cloudpickle

from services.controller.replica_fleet import raised_words, retried


def test_a_clash_with_another_thread_is_tried_again_and_nothing_else_is() -> None:
    module = sys.modules[__name__]
    calls: list[int] = []

    def submit() -> None:
        calls.append(1)
        if len(calls) < 3:
            # Ray's own words: another thread has taken the module away already.
            cloudpickle.unregister_pickle_by_value(module)

    retried(submit)
    assert len(calls) == 3

    def wrong() -> None:
        calls.append(1)
        raise ValueError("no such application")

    with pytest.raises(ValueError, match="no such application"):
        retried(wrong)
    assert len(calls) == 4


def test_a_replica_that_does_not_start_is_quoted_without_its_traceback() -> None:
    message = (
        "The deployment failed to start 3 times in a row. Error:\n"
        "ray::ServeReplica:m:replica.initialize_and_get_metadata() (pid=7)\n"
        '  File "serve_app.py", line 58, in __init__\n'
        "ValueError: the first\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "services.contracts.errors.EngineError: no fallback for model 'm': its words"
    )
    assert raised_words(message) == "no fallback for model 'm': its words"
    assert raised_words("Failed to update the deployments ['replica'].") == ""
