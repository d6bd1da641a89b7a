"""What is made of Serve's pickler when two threads use it, and of what it says of faults."""

import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from ray import cloudpickle

from services.contracts.errors import InvalidRequestError, NotReadyError
from services.controller.interfaces import DeploymentKey
from services.controller.platform.ray.replica_fleet import RayServeFleet, raised_words, retried
from tests.unit.services.controller.deploy.reconcile_world import LIMIT_S

applications: list[object] = []


def clashing_application(args: object) -> None:
    """Meets another thread when it is first made, and tells when it is made again."""
    applications.append(args)
    if len(applications) > 1:
        raise NotReadyError("made again")
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")
def test_an_application_that_met_another_thread_is_made_again() -> None:
    fleet = RayServeFleet("auto", f"{__name__}:clashing_application", "memory:")
    with pytest.raises(NotReadyError, match="made again"):
        fleet.deploy(DeploymentKey("m", 1, "cpu-x86_64-v3"), {})


is_hanging = threading.Event()
let_go = threading.Event()


def hanging_application(args: object) -> None:
    """Hangs when it is first made."""
    if not is_hanging.is_set():
        is_hanging.set()
        let_go.wait()
    raise NotReadyError(str(args))


@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")
def test_an_application_that_hangs_keeps_no_later_one_waiting() -> None:
    fleet = RayServeFleet("auto", f"{__name__}:hanging_application", "memory:")
    key = DeploymentKey("m", 1, "cpu-x86_64-v3")
    with ThreadPoolExecutor(2) as threads:
        hung = threads.submit(fleet.deploy, key, {"order": "first"})
        try:
            assert is_hanging.wait(LIMIT_S)
            with pytest.raises(NotReadyError, match="second"):
                threads.submit(fleet.deploy, key, {"order": "second"}).result(LIMIT_S)
        finally:
            let_go.set()
        with pytest.raises(NotReadyError, match="first"):
            hung.result()


def test_a_ray_that_was_to_come_and_does_not_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(InvalidRequestError, match="Ray did not start"):
        RayServeFleet("-", "no.such:application", "memory:").start()


def test_the_address_of_a_ray_that_came_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("127.0.0.1:1\n"))
    with pytest.raises(InvalidRequestError, match=r"Ray at 127.0.0.1:1 cannot be joined"):
        RayServeFleet("-", "no.such:application", "memory:").start()


def test_a_clash_with_another_thread_is_tried_again_and_nothing_else_is() -> None:
    module = sys.modules[__name__]
    calls: list[int] = []

    def submit() -> int:
        calls.append(1)
        if len(calls) < 3:
            # Ray's own words: another thread has taken the module away already.
            cloudpickle.unregister_pickle_by_value(module)
        return len(calls)

    assert retried(submit) == 3

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
    assert raised_words(message + "\n\nKeyError: 'name'") == "KeyError: 'name'"
